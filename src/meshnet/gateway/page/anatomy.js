// Where a token's time goes: what each node computes, and the rest, which is the way between them.

import { make } from "./dom.js";

const KEEP = 0.85;

export class Anatomy {
  constructor(box, hueOf) {
    this.box = box;
    this.hueOf = hueOf;
    this.took = new Map();
    this.route = [];
    this.nodes = new Map();
    this.box.replaceChildren(make("p", { class: "quietly" }, "Shown once a token was made."));
  }

  mesh({ route, nodes }) {
    this.route = route.map(({ node }) => node);
    this.nodes = new Map(nodes.map((each) => [each.node, each]));
    this.#show();
  }

  /** A chained step tells the time of all its hops together, another one that of its own. */
  step({ mode, ok, positions, nodes, ms }) {
    if (!ok || mode !== "decode" || positions > 1) return;
    const hops = nodes.join(" ");
    const before = this.took.get(hops) ?? ms;
    this.took.set(hops, before * KEEP + ms * (1 - KEEP));
    if (this.took.size > 64) this.took.delete(this.took.keys().next().value);
  }

  #total() {
    const whole = this.took.get(this.route.join(" "));
    if (whole !== undefined) return whole;
    const each = this.route.map((node) => this.took.get(node));
    return each.includes(undefined) ? null : each.reduce((sum, ms) => sum + ms, 0);
  }

  #show() {
    const total = this.#total();
    const computed = this.route.map((node) => this.nodes.get(node)).filter((node) => node?.step_ms != null);
    if (total === null || computed.length < this.route.length || computed.length === 0) return;
    const sum = computed.reduce((all, node) => all + node.step_ms, 0);
    const parts = computed.map((node) => [node.name, node.step_ms, this.hueOf(node.node)]);
    parts.push(["way and waiting", Math.max(0, total - sum), null]);
    const stack = make("div", { class: "stack", "aria-hidden": "true" });
    const key = make("ul", { class: "stack-key" });
    for (const [name, ms, hue] of parts) {
      const bar = make("i", { "data-hue": hue });
      bar.style.setProperty("--ms", ms);
      stack.append(bar);
      key.append(make("li", { "data-hue": hue }, `${name} ${ms.toFixed(1)} ms`));
    }
    this.box.replaceChildren(stack, key);
  }
}
