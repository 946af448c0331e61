// What overlaps: two elements with text of their own, neither of which contains the other, whose
// lines share more than 2 x 2 pixels; what is scrolled out of view does not count.
globalThis.overlaps = () => {
  const visible = (element, whole) => {
    let box = whole;
    for (let e = element.parentElement; e; e = e.parentElement) {
      const style = getComputedStyle(e),
        own = e.getBoundingClientRect();
      if (style.visibility === "hidden" || e.hidden) return null;
      if (style.overflowX !== "visible" || style.overflowY !== "visible")
        box = {
          left: Math.max(box.left, own.left),
          right: Math.min(box.right, own.right),
          top: Math.max(box.top, own.top),
          bottom: Math.min(box.bottom, own.bottom),
        };
    }
    return box;
  };
  const boxes = [];
  for (const part of ["header", "#lanes", "#stage", "#steps", "#inspector"]) {
    const walker = document.createTreeWalker(document.querySelector(part), NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
      const element = node.parentElement;
      if (!node.data.trim() || element.closest("math, .hidden, option, svg, [hidden]")) continue;
      const range = document.createRange();
      range.selectNode(node);
      for (const line of range.getClientRects()) {
        const box = visible(node, line);
        if (box && box.right - box.left > 2 && box.bottom - box.top > 2)
          boxes.push({
            part,
            text: node.data.trim(),
            node,
            ...box,
            left: box.left,
            right: box.right,
            top: box.top,
            bottom: box.bottom,
          });
      }
    }
    for (const canvas of document.querySelectorAll(`${part} canvas`)) {
      const box = visible(canvas, canvas.getBoundingClientRect());
      if (box && box.right - box.left > 2 && box.bottom - box.top > 2)
        boxes.push({
          part,
          text: canvas.getAttribute("aria-label"),
          node: canvas,
          left: box.left,
          right: box.right,
          top: box.top,
          bottom: box.bottom,
        });
    }
  }
  const found = [];
  boxes.forEach((a, i) =>
    boxes.slice(i + 1).forEach((b) => {
      if (a.part !== b.part || a.node === b.node) return;
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && tall > 4) found.push(`${a.part}: ${a.text} / ${b.text}: ${wide} x ${tall}`);
    }),
  );
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) found.push(`the page is ${page.scrollWidth} wide`);
  return found;
};
