// One node: its layers on the model's, what it holds, and whether it works, waits or is gone.

import { bytes, make } from "./dom.js";

export const HUES = 6;
const WORK_MS = 350;
const STATES = { ready: "", loading: "loading", draining: "draining", silent: "not answering" };

export class Lane {
  constructor(hue) {
    this.cells = make("div", { class: "cells" });
    this.head = make("div", { class: "lane-head" });
    this.meters = make("div", { class: "meters" });
    this.item = make("li", { class: "lane", "data-hue": hue },
      this.head, make("div", { class: "track", "aria-hidden": "true" }, this.cells), this.meters);
    this.cells.hidden = true;
    this.rests = 0;
  }

  get hasLayers() {
    return !this.cells.hidden;
  }

  show(values, total) {
    if (this.state === "silent" && values.state === "ready") this.#flash("back");
    this.state = values.state;
    this.item.dataset.state = values.state;
    this.#layers(values.layers, total);
    const silent = values.state === "silent";
    const range = values.layers ? `layers ${values.layers[0]}–${values.layers[1] - 1}` : "no layers yet";
    this.head.replaceChildren(
      make("strong", {}, values.name), make("span", { class: "layers" }, range + (silent ? "" : held(values.sessions))),
      make("span", { class: "state" }, STATES[values.state] ?? values.state),
      make("span", { class: "ms" }, silent || values.step_ms === null ? "" : `${values.step_ms.toFixed(1)} ms a step`));
    if (values.pid === undefined) return;
    this.#meters(values);
  }

  /** A step went through it, or did not come back. */
  works(ok) {
    if (!ok) this.#flash("hit");
    this.item.classList.add("at-work");
    clearTimeout(this.rests);
    this.rests = setTimeout(() => this.item.classList.remove("at-work"), WORK_MS);
  }

  #layers(layers, total) {
    this.cells.hidden = !layers || total === 0;
    if (this.cells.hidden) return;
    const { style } = this.cells;
    style.setProperty("--from", layers[0]);
    style.setProperty("--to", layers[1]);
    style.setProperty("--of", total);
    style.setProperty("--gap", total > 60 ? "1px" : "1.5px");
  }

  #meters({ kv_bytes: kv, kv_bytes_max: most, weight_bytes: weights, memory_bytes: memory, weights: format }) {
    const room = memory ?? weights + most;
    this.meters.replaceChildren(
      meter("KV", `${bytes(kv)} of ${bytes(most)}`, [kv / most]),
      meter(format || "weights", `${bytes(weights + kv)} of ${bytes(room)}`, [weights / room, kv / room]));
  }

  #flash(name) {
    this.item.classList.remove(name);
    void this.item.offsetWidth; // lets the animation begin anew
    this.item.classList.add(name);
  }
}

const held = (sessions) => (sessions ? ` · ${sessions} ${sessions === 1 ? "session" : "sessions"}` : "");

function meter(name, value, parts) {
  const gauge = make("div", { class: "gauge", "aria-hidden": "true" });
  for (const [at, part] of parts.entries()) {
    const bar = make("i", { class: at ? "more" : null });
    bar.style.setProperty("--part", Math.min(1, part || 0));
    gauge.append(bar);
  }
  return make("div", { class: "meter" }, make("span", {}, name), make("span", { class: "value" }, value), gauge);
}
