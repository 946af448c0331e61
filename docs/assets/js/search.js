/* Material requests the search's index with every page. It has 430 kB, and most readers never
   search: this holds the request back until the search has the focus. */

const wanted = new Promise((resolve) => {
  addEventListener("focusin", ({ target }) => {
    if (target.matches("[data-md-component='search-query']")) resolve();
  });
});

const { open, send } = XMLHttpRequest.prototype;
const held = new WeakSet();

XMLHttpRequest.prototype.open = function (method, address, ...rest) {
  if (String(address).endsWith("/search/search_index.json")) held.add(this);
  open.call(this, method, address, ...rest);
};

XMLHttpRequest.prototype.send = function (...body) {
  if (held.has(this)) wanted.then(() => send.apply(this, body));
  else send.apply(this, body);
};
