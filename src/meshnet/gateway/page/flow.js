// Each token's way through the hops: a light that runs along the layers, node by node. What is
// drawn is slower than what happens, and of a fast mesh not every step is drawn.

const GAP_MS = 110;
const ALONG_MS = 420;
const DROP_MS = 170;
const LIGHTS_MAX = 40;
const TRAIL = 12;
const TRAIL_MS = 130;

export class Flow {
  constructor(canvas) {
    this.canvas = canvas;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.lights = [];
    this.lastAt = -GAP_MS;
    this.frame = null;
  }

  /** Send a light along `cells`, the elements that stand for the layers of each hop in turn. */
  send(cells, { positions, ok }) {
    const now = performance.now();
    if (this.still.matches || document.hidden || cells.length === 0) return;
    if (this.lights.length >= LIGHTS_MAX || now - this.lastAt < GAP_MS) return;
    const legs = this.#legs(cells);
    if (legs.length === 0) return;
    this.lastAt = now;
    const radius = Math.min(7, 3 + Math.log2(Math.max(1, positions)) * 0.5);
    this.lights.push({ began: now, legs, radius, ok, takes: legs.at(-1).until });
    this.frame ??= requestAnimationFrame((at) => this.#draw(at));
  }

  #legs(cells) {
    const origin = this.canvas.getBoundingClientRect();
    if (origin.width === 0) return [];
    const legs = [];
    let until = 0;
    let from = null;
    for (const each of cells) {
      const box = each.getBoundingClientRect();
      const colour = getComputedStyle(each).getPropertyValue("--hue");
      const y = box.top + box.height / 2 - origin.top;
      const [start, stop] = [box.left - origin.left, box.right - origin.left];
      if (from) legs.push({ from, to: [start, y], colour, begins: until, until: (until += DROP_MS) });
      legs.push({ from: [start, y], to: [stop, y], colour, begins: until, until: (until += ALONG_MS) });
      from = [stop, y];
    }
    return legs;
  }

  #draw(now) {
    const { canvas } = this;
    const scale = devicePixelRatio;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.lights = this.lights.filter((light) => now - light.began < light.takes + TRAIL_MS * 3);
    for (const light of this.lights) paint(pen, light, now - light.began);
    this.frame = this.lights.length ? requestAnimationFrame((at) => this.#draw(at)) : null;
  }
}

function place(legs, at) {
  const leg = legs.find((each) => at < each.until) ?? legs.at(-1);
  const part = Math.min(1, (at - leg.begins) / (leg.until - leg.begins));
  const [x, y] = [0, 1].map((axis) => leg.from[axis] + (leg.to[axis] - leg.from[axis]) * part);
  return { x, y, colour: leg.colour };
}

function paint(pen, { legs, radius, takes, ok }, age) {
  pen.lineCap = "round";
  for (let step = TRAIL; step > 0; step -= 1) {
    const [older, newer] = [step, step - 1].map((each) => age - (each * TRAIL_MS) / TRAIL);
    if (older < 0 || older > takes) continue;
    const [from, to] = [older, newer].map((at) => place(legs, Math.min(at, takes)));
    const near = 1 - step / (TRAIL + 1);
    pen.globalAlpha = near * 0.6;
    pen.strokeStyle = to.colour;
    pen.lineWidth = radius * (0.4 + near);
    pen.beginPath();
    pen.moveTo(from.x, from.y);
    pen.lineTo(to.x, to.y);
    pen.stroke();
  }
  if (age <= takes) head(pen, place(legs, age), radius);
  const over = (age - takes) / (TRAIL_MS * 3);
  if (over <= 0) return;
  const { to, colour } = legs.at(-1);
  pen.globalAlpha = 1 - over;
  pen.strokeStyle = ok ? colour : "#e5484d";
  pen.lineWidth = 2;
  pen.beginPath();
  pen.arc(to[0], to[1], radius + over * 10, 0, 2 * Math.PI);
  pen.stroke();
  pen.globalAlpha = 1;
}

function head(pen, { x, y, colour }, radius) {
  pen.globalAlpha = 1;
  pen.fillStyle = "#fff";
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
  pen.stroke();
}
