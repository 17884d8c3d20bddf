// The mesh, live: follows the gateway's feed and shows what it says.

import { ApiError, call, events } from "./api.js";
import { by, make, svg } from "./dom.js";
import { Flow } from "./flow.js";
import { Lane, HUES } from "./lane.js";
import { Anatomy } from "./anatomy.js";

const RETRY_MS = [500, 1000, 2000, 5000];
const LOG_MAX = 60;
const SECONDS = 60;
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

export class Mesh {
  constructor() {
    this.lanes = new Map();
    this.hues = new Map();
    this.flow = new Flow(by("flow"));
    this.anatomy = new Anatomy(by("anatomy"), (node) => this.hues.get(node) ?? 0);
    this.rates = Array(SECONDS).fill(0);
    this.followed = false;
    this.#link("warn", "connecting");
  }

  /** Follow the feed for as long as the page is open. */
  async run() {
    for (let tries = 0; ; tries += 1) {
      try {
        const response = await call("/mesh/live");
        by("log").replaceChildren();
        for await (const batch of events(response)) {
          tries = 0;
          this.#take(batch);
        }
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) {
          this.#link("bad", "this server tells nothing of its mesh");
          return;
        }
      }
      this.#link("bad", "reconnecting");
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]));
    }
  }

  #take({ mesh, steps, happenings }) {
    for (const step of steps) this.#step(step);
    if (mesh) this.#show(mesh);
    for (const happening of happenings) this.#happened(happening);
    this.followed = true;
  }

  #show(mesh) {
    const ready = mesh.nodes.filter((node) => node.state === "ready").length;
    const nodes = `${mesh.nodes.length} ${mesh.nodes.length === 1 ? "node" : "nodes"}`;
    this.#link(mesh.ready ? "good" : "bad", mesh.ready ? "live" : "not ready");
    this.#pulse(mesh, ready === mesh.nodes.length ? nodes : `${ready} of ${nodes}`);
    by("model").replaceChildren(make("strong", {}, mesh.model), ` · ${mesh.layers} layers on ${nodes}`,
      ...(mesh.ready ? [] : [make("span", { class: "trouble" }, mesh.detail)]));
    by("empty-text").textContent =
      `${mesh.model} answers, its ${mesh.layers} layers on ${nodes}. Watch your answer pass through them.`;
    this.#figures(mesh);
    this.#spark(mesh.tokens_per_s);
    by("axis").replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((part) => make("span", {}, Math.round(part * mesh.layers))));
    this.#lanes(mesh);
    this.anatomy.mesh(mesh);
  }

  #pulse(mesh, nodes) {
    const chip = by("pulse");
    chip.className = `chip ${mesh.ready ? "is-good" : "is-bad"}`;
    const rate = mesh.tokens_per_s > 0 ? ` · ${mesh.tokens_per_s.toFixed(0)} tokens/s` : "";
    by("pulse-text").textContent = nodes + rate;
  }

  #figures(mesh) {
    const waiting = mesh.waiting ? `, ${mesh.waiting} waiting` : "";
    const figures = [
      [mesh.tokens_per_s.toFixed(mesh.tokens_per_s >= 100 ? 0 : 1), "tokens/s now"],
      [String(mesh.running), `running${waiting}`],
      [String(mesh.refills), mesh.refills === 1 ? "recovery" : "recoveries"],
    ];
    by("figures").replaceChildren(...figures.map(([value, name]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }

  #spark(rate) {
    this.rates = [...this.rates.slice(1), rate];
    const most = Math.max(10, ...this.rates);
    const points = this.rates.map((each, at) => `${((at * 100) / (SECONDS - 1)).toFixed(2)},${(38 - (each / most) * 36).toFixed(2)}`);
    by("spark").setAttribute("aria-label", `Tokens per second over the last minute: now ${rate.toFixed(0)}, at most ${Math.max(...this.rates).toFixed(0)}`);
    by("spark").replaceChildren(svg("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none" },
      svg("line", { class: "base", x1: 0, x2: 100, y1: 39, y2: 39 }),
      svg("polygon", { class: "area", points: `0,39 ${points.join(" ")} 100,39` }),
      svg("polyline", { class: "line", points: points.join(" ") })));
  }

  #lanes(mesh) {
    const order = [...mesh.nodes].sort((one, other) =>
      (one.layers?.[0] ?? 1e9) - (other.layers?.[0] ?? 1e9) || one.name.localeCompare(other.name));
    const named = new Set(order.map(({ node }) => node));
    for (const [node, lane] of this.lanes) {
      if (named.has(node)) continue;
      lane.item.remove();
      this.lanes.delete(node);
    }
    for (const [at, values] of order.entries()) {
      if (!this.hues.has(values.node)) this.hues.set(values.node, this.hues.size % HUES);
      let lane = this.lanes.get(values.node);
      if (!lane) this.lanes.set(values.node, (lane = new Lane(this.hues.get(values.node))));
      lane.show(values, mesh.layers);
      if (by("lanes").children[at] !== lane.item) by("lanes").insertBefore(lane.item, by("lanes").children[at] ?? null);
    }
  }

  #step(step) {
    const lanes = step.nodes.map((node) => this.lanes.get(node)).filter(Boolean);
    for (const lane of lanes) lane.works(step.ok);
    this.flow.send(lanes.filter((lane) => lane.hasLayers).map((lane) => lane.cells), step);
    this.anatomy.step(step);
  }

  #happened({ level, text, ago_s: ago }) {
    const at = new Date(Date.now() - ago * 1000);
    const item = make("li", { class: `is-${level}${this.followed ? " new" : ""}` },
      make("span", { class: "dot", "aria-hidden": "true" }), text,
      make("time", { datetime: at.toISOString() }, clock.format(at)));
    by("log").prepend(item);
    while (by("log").children.length > LOG_MAX) by("log").lastElementChild.remove();
    if (this.followed && level !== "note") by("said").textContent = text;
  }

  #link(level, text) {
    by("link").className = `chip is-${level}`;
    by("link-text").textContent = text;
    if (level === "bad") by("pulse").className = "chip is-bad";
    if (level === "bad") by("pulse-text").textContent = text;
  }
}
