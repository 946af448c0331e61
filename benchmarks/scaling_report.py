"""The model's predictions from what scaling.py measured, and their tables and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import scaling_model as sm
from pictures import _figure
from report import duration, table
from workloads import WHAT

Found = dict[str, Any]
MOST = 1000  # ranks
MEMORY = "shared memory, as measured"
SHOWN = 8  # ranks of the table of overlap
COLORS = {MEMORY: "#0b5fa5", "10 Gbit/s Ethernet": "#d62728", "100 Gbit/s InfiniBand": "#2e8b57"}


# --- the model -----------------------------------------------------------------------------------


def model(found: Found) -> Found:
    """Calibrate the model, predict what was measured, and simulate what was not."""
    memory = network_of(found)
    sizes = {size: sm.exchange(int(size), 2, memory) for size in found["network"]["seconds"]}
    result: Found = {
        "network": {"latency": memory.latency, "bandwidth": memory.bandwidth, "predicted": sizes},
        "assumed": {n.name: [n.latency, n.bandwidth] for n in sm.ASSUMED},
        "workloads": {},
    }
    for workload, own in found.get("workloads", {}).items():
        job = job_of(own, memory)
        result["workloads"][workload] = {
            "overhead": job.compute.overhead,
            "rate": job.compute.rate,
            "buckets": [[piece.size, piece.last] for piece in job.pieces],
            "predicted": predicted(job),
            "simulated": {
                network.name: simulated(own, network) for network in (memory, *sm.ASSUMED)
            },
        }
    return result


def network_of(found: Found) -> sm.Network:
    seconds = found["network"]["seconds"]
    pair = (seconds[str(sm.SMALL)], seconds[str(sm.LARGE)])
    return sm.Network.calibrated(MEMORY, (sm.SMALL, sm.LARGE), pair)


def job_of(own: Found, network: sm.Network, **settings: Any) -> sm.Job:
    """Return a workload on a network, calibrated by its whole and its half batch."""
    layers = [sm.Layer(*each) for each in own["layers"]]
    batch, flops = own["batch"], own["flops"]
    seconds = own["seconds"]
    compute = sm.Compute.calibrated(
        (flops * (batch // 2), flops * batch),
        (seconds["half"]["median"], seconds["whole"]["median"]),
    )
    return sm.Job(layers, sm.buckets(layers), compute, flops, batch, network, **settings)


def predicted(job: sm.Job) -> dict[str, float]:
    """Return the seconds of the steps that scaling.py measures, besides those that calibrate."""

    def step(samples: int, overlap: bool, ranks: int = 2) -> float:
        arguments = (job.layers, job.pieces, job.compute, job.flops * samples, job.network, ranks)
        return sm.simulate(*arguments, overlap=overlap).seconds

    half, whole = job.batch // 2, job.batch
    return {
        "eighth": step(job.batch // 8, False, 1),
        "after": step(half, False),
        "overlap": step(half, True),
        "weak": step(whole, False),
    }


def simulated(own: Found, network: sm.Network) -> Found:
    """Return the curves and limits of a workload on a network, for both scalings and algorithms."""
    result: Found = {}
    for scaling in ("strong", "weak"):
        for algorithm in sm.ALGORITHMS:
            job = job_of(own, network, scaling=scaling, algorithm=algorithm)
            best = sm.fastest(job, MOST)
            result[f"{scaling} {algorithm}"] = {
                "pays": sm.stops_paying(job, MOST),
                "limit": job.limit(MOST),
                "fastest": best,
                "speedup": job.speedup(best),
                "efficiency": job.efficiency(job.limit(MOST)),
                "curve": {str(ranks): job.speedup(ranks) for ranks in sm.counts(job.limit(MOST))},
            }
    for overlap in (True, False):
        job = job_of(own, network, overlap=overlap)
        result["overlap" if overlap else "after"] = job.step(SHOWN).seconds
    return result


# --- tables --------------------------------------------------------------------------------------


def tables(found: Found) -> str:
    """All results as Markdown; each section stands between markers, by which pages include it."""
    parts = []
    sections = (machine, measured, exchange, overlap, calibration, predictions, limits)
    for section in sections:
        name, text = section.__name__, "\n\n".join(section(found))
        parts.append(f"<!-- --8<-- [start:{name}] -->\n{text}\n\n<!-- --8<-- [end:{name}] -->")
    return "\n\n".join(parts) + "\n"


def median(own: Found, setting: str) -> float:
    return own["seconds"][setting]["median"]


def names(found: Found) -> list[tuple[str, Found, Found]]:
    """Each workload with its label, its measurements and its model."""
    models = found["model"]["workloads"]
    return [
        (f"{w}, batch {own['batch']}", own, models[w])
        for w, own in sorted(found["workloads"].items())
    ]


def machine(found: Found) -> list[str]:
    every = found["workloads"].values()
    noisy, blocks = (sum(own[key] for own in every) for key in ("noisy", "blocks"))
    return [
        f"Created by `make scaling` on: {found['machine']}. Every process ran with one BLAS thread "
        f"and one thread of phitodeep. When the measurement began, the load average was "
        f"{found['load']:.2f}; in {noisy} of {blocks} blocks other processes took a core at times."
    ]


def measured(found: Found) -> list[str]:
    rows = []
    for name, own, _ in names(found):
        one, shared, weak = (median(own, key) for key in ("whole", "overlap", "weak"))
        times = [one, shared, weak]
        speeds = [f"{one / shared:.2f}", f"{2 * one / weak:.2f}"]
        rows.append([name, *map(duration, times), *speeds])
    head = ["", "1 rank", "2 ranks, half a batch each", "2 ranks, a batch each"]
    return [table([*head, "speedup, half a batch", "speedup, a batch"], rows)]


def exchange(found: Found) -> list[str]:
    rows = []
    for name, own, fitted in names(found):
        ours, bare = (median(own, f"exchange, {kind}") for kind in ("ours", "bare"))
        sizes = [size for size, _ in fitted["buckets"]]
        cells = [f"{sum(sizes) / 1e6:.2f} MB", str(len(sizes)), duration(ours), duration(bare)]
        rows.append([name, *cells, f"{ours / bare:.2f}"])
    head = ["", "gradients", "buckets", "exchange", "bare `Allreduce`", "ratio"]
    return [table(head, rows)]


def overlap(found: Found) -> list[str]:
    rows = []
    for name, own, _ in names(found):
        alone, apart, after, early = (
            median(own, key) for key in ("half", "apart", "after", "overlap")
        )
        both = apart + median(own, "exchange, ours")
        rows.append([name, *map(duration, (alone, apart, both, after, early))])
    head = ["", "half a batch, alone", "two at once, no exchange", "that plus the exchange"]
    return [table([*head, "2 ranks, no overlap", "2 ranks, overlap"], rows)]


def calibration(found: Found) -> list[str]:
    rows = [
        [name, f"{1e-6 * own['flops']:.2f}", duration(fit["overhead"]), f"{1e-9 * fit['rate']:.1f}"]
        for name, own, fit in names(found)
    ]
    fitted, seconds = found["model"]["network"], found["network"]["seconds"]
    sizes = [
        [
            f"{int(size):,}" + (" (calibrates)" if int(size) in (sm.SMALL, sm.LARGE) else ""),
            duration(took),
            duration(fitted["predicted"][size]),
            percent(fitted["predicted"][size] / took),
        ]
        for size, took in seconds.items()
    ]
    return [
        table(["", "MFLOP per sample", "overhead", "GFLOP/s"], rows),
        f"The network, two ranks in shared memory: latency {1e6 * fitted['latency']:.1f} us per "
        f"round, bandwidth {1e-9 * fitted['bandwidth']:.1f} GB/s.",
        table(["bytes of an `Allreduce`", "measured", "model", "error"], sizes),
    ]


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def predictions(found: Found) -> list[str]:
    rows = []
    for name, own, fit in names(found):
        cells = []
        for setting in ("eighth", "after", "overlap", "weak"):
            took, guess = median(own, setting), fit["predicted"][setting]
            cells.append(f"{duration(guess)} / {duration(took)}, {percent(guess / took)}")
        rows.append([name, *cells, percent(median(own, "apart") / median(own, "half"))])
    head = ["predicted / measured, error", "1 rank, an eighth of a batch"]
    head += ["2 ranks, half a batch each, no overlap", "the same, overlap"]
    head += ["2 ranks, a batch each", "two at once slow each other by"]
    return [table(head, rows)]


def limits(found: Found) -> list[str]:
    """The tables of many ranks: one for each network, and one of overlap."""
    parts = []
    for network in (MEMORY, *found["model"]["assumed"]):
        rows = []
        for name, _, fit in names(found):
            own, cells = fit["simulated"][network], []
            for algorithm in sm.ALGORITHMS:
                strong, weak = (own[f"{scaling} {algorithm}"] for scaling in ("strong", "weak"))
                fast = f"{strong['speedup']:.1f} times on {strong['fastest']}"
                cells += [pays(strong), fast, pays(weak)]
            rows.append([name, *cells])
        heads = [
            f"{a}: {what}"
            for a in sm.ALGORITHMS
            for what in ("one batch pays to", "fastest", "a batch each pays to")
        ]
        parts += [f"**{title(network, found)}**", table(["", *heads], rows)]
    head = ["", *(n for n in (MEMORY, *found["model"]["assumed"]))]
    rows = [
        [
            name,
            *(
                f"{duration(own['after'])}, {duration(own['overlap'])}"
                for network in head[1:]
                for own in [fit["simulated"][network]]
            ),
        ]
        for name, _, fit in names(found)
    ]
    parts += [f"**A step of {SHOWN} ranks: without and with overlap**", table(head, rows)]
    picture = "![Samples per second on 1 to 1,000 ranks, by a ring](pictures/scaling.png)"
    return [picture, *parts]


def pays(own: Found) -> str:
    """Return the number of ranks, marked if it is the end of what was tried."""
    return f"{own['pays']:,}" + ("+" if own["pays"] == own["limit"] else "")


def title(network: str, found: Found) -> str:
    if network == MEMORY:
        latency, bandwidth = (found["model"]["network"][key] for key in ("latency", "bandwidth"))
        start = "Shared memory, as measured between two ranks; a core for each rank is assumed"
    else:
        latency, bandwidth = found["model"]["assumed"][network]
        start = f"{network}, assumed"
    return f"{start}: {1e6 * latency:.1f} us per round, {1e-9 * bandwidth:.2f} GB/s"


# --- the picture ---------------------------------------------------------------------------------


def draw(found: Found, file: Path) -> None:
    """Draw the speedup of each workload by ranks, simulated and measured."""
    every = sorted(found["model"]["workloads"].items())
    figure = _figure(11, 8)
    panels = figure.subplots(2, -(-len(every) // 2), sharex=True, sharey=True, squeeze=False)
    for panel in panels.ravel()[len(every) :]:
        panel.set_axis_off()
    for panel, (workload, fit) in zip(panels.ravel(), every, strict=False):
        panel.plot([1, MOST], [1, MOST], color="#bbbbbb", lw=1, label="ideal")
        for network, color in COLORS.items():
            for scaling, style in (("weak", "-"), ("strong", ":")):
                own = fit["simulated"][network][f"{scaling} ring"]
                ranks = [int(r) for r in own["curve"]]
                label = f"{network}: {'a batch each' if scaling == 'weak' else 'one batch shared'}"
                lw = 3.5 if network == MEMORY else 1.6  # lines may lie on each other
                panel.plot(ranks, [*own["curve"].values()], style, color=color, lw=lw, label=label)
        own = found["workloads"][workload]
        one = median(own, "whole")
        for setting, mark, grown in (("weak", "s", 2), ("overlap", "o", 1)):
            label = f"measured: {'a batch each' if setting == 'weak' else 'one batch shared'}"
            speed = grown * one / median(own, setting)
            panel.plot(2, speed, mark, color="black", mfc="none", ms=6, label=label)
        panel.set_title(f"{workload}, batch {own['batch']}\n{WHAT[workload]}", fontsize=9)
        panel.set(xscale="log", yscale="log", ylim=(0.1, 1.4 * MOST))
        panel.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
        panel.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
        panel.grid(color="#eeeeee")
    for panel in panels[-1]:
        panel.set_xlabel("ranks (logarithmic)", fontsize=9)
    figure.supylabel("samples per second, 1 rank = 1 (logarithmic)", fontsize=10)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(file, dpi=120)
