// Charts of scalars as inline SVG, for the local page and for reports. Texts are set as text, never as markup.
"use strict";
const Charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  // Lines of fewer values, such as those of evaluations, are not smoothed.
  const FEW = 40;
  const MARGIN = { left: 62, right: 10, top: 8, bottom: 22 };

  function svg(name, attributes, parent) {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.append(node);
    return node;
  }

  function element(name, className, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // Four significant digits, and letters for large numbers.
  function number(value) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    const size = Math.abs(value);
    if (size === 0) return "0";
    for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
      if (size >= unit) return trim(value / (unit === 1e4 ? 1e3 : unit)) + letter;
    }
    return size < 1e-3 ? value.toExponential(2) : trim(value);
  }

  function trim(value) {
    const digits = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value))));
    const text = value.toFixed(Math.min(digits, 8));
    return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  }

  function duration(seconds) {
    if (seconds < 60) return trim(seconds || 0.0001).replace(/^0\.0001$/, "0") + " s";
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return minutes + " min " + Math.floor(seconds % 60) + " s";
    return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
  }

  const AXES = {
    step: { label: "step", show: value => String(Math.round(value)) , tick: number },
    tokens: { label: "tokens", show: number, tick: number },
    seconds: { label: "time", show: duration, tick: duration },
  };

  // Bytes are shown in MiB or GiB, shares in percent.
  function unit(tag) {
    if (tag.endsWith("_bytes")) {
      return value => value >= 2 ** 30 ? trim(value / 2 ** 30) + " GiB" : trim(value / 2 ** 20 || 0.0001) + " MiB";
    }
    if (tag.endsWith("_share")) return value => trim(100 * value || 0.0001) + " %";
    return number;
  }

  function ticks(low, high, count) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].find(each => each * power >= rough) * power;
    const found = [];
    for (let at = Math.ceil(low / size); at * size <= high + size * 1e-9; at++) found.push(at * size);
    return found;
  }

  function powers(low, high) {
    const found = [];
    for (let power = Math.ceil(low); power <= high; power++) found.push(power);
    // Within a power of ten, round values are better marks than round logarithms.
    return found.length >= 3 ? found : ticks(10 ** low, 10 ** high, 5).filter(at => at > 0).map(Math.log10);
  }

  // An exponential mean that is not drawn to zero at its beginning.
  function smoothed(values, weight) {
    let mean = 0, share = 0;
    return values.map(value => {
      if (value === null) return null;
      mean = weight * mean + (1 - weight) * value;
      share = weight * share + (1 - weight);
      return mean / share;
    });
  }

  class Chart {
    constructor(tag, small) {
      this.tag = tag;
      this.lines = [];
      this.options = { axis: "step", smoothing: 0, log: false, marks: [] };
      this.node = element("figure", "chart");
      this.node.style.margin = "0";
      this.node.tabIndex = 0;
      this.node.setAttribute("role", "img");
      this.node.dataset.tag = tag;
      const title = element("h3");
      title.append(element("span", "", tag), element("small", "", small || ""));
      this.picture = svg("svg", {});
      this.tip = element("div", "tip");
      this.tip.hidden = true;
      this.node.append(title, this.picture, this.tip);
      this.node.addEventListener("pointermove", event => this.point(event));
      this.node.addEventListener("pointerleave", () => this.leave());
      this.node.addEventListener("blur", () => this.leave());
      this.node.addEventListener("keydown", event => this.key(event));
      new ResizeObserver(() => this.draw()).observe(this.picture);
    }

    // lines: {name, slot, stream, series}.
    update(lines, options) {
      this.lines = lines;
      this.options = { ...this.options, ...options };
      const names = lines.map(line => line.name).join(", ");
      this.node.setAttribute("aria-label", `${this.tag} over ${AXES[this.options.axis].label}: ${names}`);
      this.draw();
    }

    draw() {
      const width = this.picture.clientWidth, height = this.picture.clientHeight;
      if (!width || !height) return;
      const { axis, smoothing, log } = this.options;
      const value = number => number === null ? null : log ? (number > 0 ? Math.log10(number) : null) : number;
      this.prepared = this.lines.map(line => {
        const last = line.series.last.map(value);
        return {
          ...line, x: line.stream[axis], last, shown: smoothing > 0 && last.length > FEW ? smoothed(last, smoothing) : last,
          min: line.series.min.map(value), max: line.series.max.map(value),
        };
      });
      let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
      for (const line of this.prepared) {
        for (const x of line.x) { left = Math.min(left, x); right = Math.max(right, x); }
        // Spikes of a few buckets would flatten the rest: the range is that of all but the outermost hundredth.
        const all = line.min.concat(line.max).filter(each => each !== null).sort((a, b) => a - b);
        const cut = all.length > 200 ? Math.floor(all.length / 100) : 0;
        if (all.length) { low = Math.min(low, all[cut]); high = Math.max(high, all[all.length - 1 - cut]); }
      }
      this.picture.replaceChildren();
      this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
      if (!(left <= right) || !(low <= high)) {
        svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, this.picture).textContent = "no values";
        this.scale = null;
        return;
      }
      if (left === right) { left -= 0.5; right += 0.5; }
      const room = (high - low) * 0.04 || Math.abs(high) * 0.1 || 0.5;
      low -= room; high += room;
      const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
      const x = at => MARGIN.left + inner.width * (at - left) / (right - left);
      const y = at => MARGIN.top + inner.height * (1 - (at - low) / (high - low));
      this.scale = { x, y, left, right, width };
      this.drawAxes(x, y, { left, right, low, high, width, height });
      const clip = svg("svg", { x: MARGIN.left, y: MARGIN.top, width: inner.width, height: inner.height,
        viewBox: `${MARGIN.left} ${MARGIN.top} ${inner.width} ${inner.height}` }, this.picture);
      clip.style.height = inner.height + "px";
      clip.style.margin = "0";
      for (const mark of this.options.marks) {
        const at = mark[axis];
        if (!(at >= left && at <= right)) continue;
        const line = svg("path", { class: "mark " + mark.kind, d: `M${x(at).toFixed(1)} ${MARGIN.top}V${height}` }, clip);
        svg("title", {}, line).textContent = `${mark.kind} at step ${mark.step}: ${mark.text}`;
      }
      for (const line of this.prepared) this.drawLine(line, x, y, clip);
      this.cross = svg("g", {}, this.picture);
      if (this.at !== undefined) this.show(this.at);
    }

    drawAxes(x, y, { left, right, low, high, width, height }) {
      const { axis, log } = this.options;
      const show = unit(this.tag);
      for (const at of log ? powers(low, high) : ticks(low, high, 5)) {
        svg("path", { class: "grid", d: `M${MARGIN.left} ${y(at).toFixed(1)}H${width - MARGIN.right}` }, this.picture);
        const text = svg("text", { x: MARGIN.left - 6, y: y(at) + 4, "text-anchor": "end" }, this.picture);
        text.textContent = show(log ? 10 ** at : at);
      }
      const bottom = height - MARGIN.bottom;
      svg("path", { class: "axis", d: `M${MARGIN.left} ${bottom}H${width - MARGIN.right}` }, this.picture);
      for (const at of ticks(left, right, Math.max(2, Math.floor(width / 110)))) {
        const near = x(at) > width - 40;
        const text = svg("text", { x: near ? width - MARGIN.right : x(at), y: bottom + 15, "text-anchor": near ? "end" : "middle" }, this.picture);
        text.textContent = AXES[axis].tick(at);
      }
    }

    drawLine(line, x, y, parent) {
      const path = values => {
        let text = "", pen = false;
        values.forEach((value, at) => {
          if (value === null) { pen = false; return; }
          text += `${pen ? "L" : "M"}${x(line.x[at]).toFixed(1)} ${y(value).toFixed(1)}`;
          pen = true;
        });
        return text;
      };
      const kept = line.x.map((_, at) => at).filter(at => line.min[at] !== null);
      if (line.stream.stride > 1 && kept.length > 1) {
        const side = (values, order) => order.map(at => `${x(line.x[at]).toFixed(1)} ${y(values[at]).toFixed(1)}`).join("L");
        const d = "M" + side(line.max, kept) + "L" + side(line.min, kept.slice().reverse()) + "Z";
        svg("path", { class: `band s${line.slot}`, d }, parent);
      }
      if (line.shown !== line.last) svg("path", { class: `raw s${line.slot}`, d: path(line.last) }, parent);
      svg("path", { class: `line s${line.slot}`, d: path(line.shown) }, parent);
      if (kept.length <= 12) {
        for (const at of kept) {
          if (line.shown[at] !== null) svg("circle", { class: `s${line.slot}`, r: 3, cx: x(line.x[at]), cy: y(line.shown[at]) }, parent);
        }
      }
    }

    point(event) {
      if (!this.scale) return;
      const box = this.picture.getBoundingClientRect();
      const { left, right, width } = this.scale;
      const share = (event.clientX - box.left - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
      this.show(left + Math.min(1, Math.max(0, share)) * (right - left));
    }

    key(event) {
      if (!this.scale || !["ArrowLeft", "ArrowRight", "Escape"].includes(event.key)) return;
      event.preventDefault();
      if (event.key === "Escape") { this.leave(); return; }
      const { left, right } = this.scale;
      const move = (event.key === "ArrowRight" ? 1 : -1) * (right - left) / 50;
      this.show(Math.min(right, Math.max(left, (this.at ?? left) + move)));
    }

    leave() {
      this.at = undefined;
      this.tip.hidden = true;
      if (this.cross) this.cross.replaceChildren();
    }

    // The values next to a place on the axis.
    show(at) {
      this.at = at;
      const { x, y, width } = this.scale;
      const { axis, log } = this.options;
      const show = unit(this.tag);
      this.cross.replaceChildren();
      this.tip.replaceChildren();
      let place = null;
      for (const line of this.prepared) {
        let best = -1;
        line.x.forEach((value, index) => {
          if (line.shown[index] !== null && (best < 0 || Math.abs(value - at) < Math.abs(line.x[best] - at))) best = index;
        });
        if (best < 0) continue;
        if (place === null || Math.abs(line.x[best] - at) < Math.abs(place - at)) place = line.x[best];
        svg("circle", { class: `s${line.slot}`, r: 3.5, cx: x(line.x[best]), cy: y(line.shown[best]) }, this.cross);
        const row = element("div");
        const name = element("span");
        name.append(element("i", `dot s${line.slot}`), " ", line.name);
        row.append(name, element("b", "", show(log ? 10 ** line.shown[best] : line.shown[best])));
        this.tip.append(row);
      }
      if (place === null) { this.tip.hidden = true; return; }
      this.tip.prepend(element("div", "soft", `${AXES[axis].label} ${AXES[axis].show(place)}`));
      svg("path", { class: "cross", d: `M${x(place).toFixed(1)} ${MARGIN.top}V${this.picture.clientHeight - MARGIN.bottom}` }, this.cross);
      this.tip.hidden = false;
      const side = x(place) > width / 2;
      this.tip.style.top = "40px";
      this.tip.style.left = side ? "" : x(place) + 24 + "px";
      this.tip.style.right = side ? width - x(place) + 24 + "px" : "";
    }
  }

  // What is shown first, and what is an axis or a count rather than a result.
  const FIRST = ["train/loss", "validation/loss", "validation/accuracy", "train/grad_norm", "train/lr"];
  const HIDDEN = /\/(epoch|samples|tokens|seconds|eval_seconds|step)$/;

  function order(tags) {
    const rank = tag => { const at = FIRST.indexOf(tag); return at < 0 ? FIRST.length : at; };
    return tags.filter(tag => !HIDDEN.test(tag)).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  }

  function segments(label, choices, value, change) {
    const group = element("span", "segments");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", label);
    const buttons = choices.map(([id, text]) => {
      const button = element("button", "", text);
      button.type = "button";
      button.dataset.value = id;
      button.addEventListener("click", () => { press(id); change(id); });
      group.append(button);
      return button;
    });
    const press = id => buttons.forEach(button => button.setAttribute("aria-pressed", String(button.dataset.value === id)));
    press(value);
    return group;
  }

  function slider(label, value, change) {
    const node = element("label", "control", label);
    const input = element("input");
    const output = element("output");
    Object.assign(input, { type: "range", min: 0, max: 0.99, step: 0.01, value });
    const show = () => { output.textContent = Number(input.value).toFixed(2); };
    input.addEventListener("input", () => { show(); change(Number(input.value)); });
    show();
    node.append(input, output);
    return node;
  }

  return { Chart, element, number, duration, unit, order, segments, slider };
})();
