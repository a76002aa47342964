// Draws every <figure class="plot"> from the JSON inside of it: a line for each row, a dot for each provider.
// Choose the pass, the scale and the providers; point at a row, or reach it with Tab, for its numbers.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  // Okabe and Ito's colours, which people with any common colour blindness can tell apart.
  const KNOWN = { auto: "#0072b2", triton: "#56b4e9", cute: "#009e73", quack: "#e69f00", torch: "#cc79a7", loop: "#d55e00" };
  const OTHERS = ["#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#b8a800", "#8a63d2", "#a0522d", "#5f9ea0"];
  const make = (name, attributes = {}, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const element = (name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const digits = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

  function ticks(top) {
    const rough = top / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
    return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step);
  }

  // Words of a title on lines of at most `room` characters.
  function wrap(title, room) {
    const lines = [""];
    for (const word of title.replace(/\b([NK]) (?=\d)/g, "$1\u00a0").split(" ")) {
      const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
      if (longer.length > room && lines.at(-1)) lines.push(word);
      else lines[lines.length - 1] = longer;
    }
    return lines;
  }

  function start(figure) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const free = OTHERS.filter((each) => !data.providers.some(({ key }) => KNOWN[key] === each));
    const color = {};
    for (const { key, role } of data.providers) color[key] = KNOWN[key] ?? (role === "ceiling" ? "#909090" : free.shift());
    const hidden = new Set();
    const state = { pass: data.passes[0].key, base: data.base };

    const controls = element("div", "plot-controls");
    const choose = (label, options, key) => {
      const box = element("label", "plot-choice", `${label} `), select = element("select");
      for (const [value, text] of options) select.append(new Option(text, value));
      select.value = state[key];
      select.addEventListener("change", () => { state[key] = select.value; draw(); });
      box.append(select);
      controls.append(box);
    };
    if (data.passes.length > 1) choose(data.choice, data.passes.map((each) => [each.key, each.label]), "pass");
    choose("Scale", [["", "rate"], ...data.providers.map((each) => [each.key, `relative to ${each.label}`])], "base");

    const legend = element("div", "plot-legend");
    for (const each of data.providers) {
      const label = element("label"), box = element("input"), dot = element("span", `plot-dot ${each.role}`);
      box.type = "checkbox";
      box.checked = true;
      box.addEventListener("change", () => { box.checked ? hidden.delete(each.key) : hidden.add(each.key); draw(); });
      dot.style.setProperty("--dot", color[each.key]);
      label.append(box, dot, each.label);
      label.dataset.key = each.key;
      legend.append(label);
    }
    const panels = element("div", "plot-panels"), values = element("div", "plot-values");
    values.setAttribute("aria-live", "polite");
    figure.append(controls, legend, panels, values, element("figcaption", "", data.title));

    const has = (each) => (row) => row.rate[state.pass]?.[each.key] !== undefined;
    const shown = () => data.providers.filter((each) => !hidden.has(each.key) && data.rows.some(has(each)));
    const value = (row, key) => {
      const rates = row.rate[state.pass] ?? {};
      return state.base ? rates[key] / rates[state.base] : rates[key];
    };
    const idle = "Point at a row for its numbers.";

    function tell(row) {
      values.replaceChildren();
      if (!row) { values.textContent = idle; return; }
      const listed = shown().map((each) => [each, value(row, each.key)]).filter(([, v]) => Number.isFinite(v));
      values.append(element("strong", "", `${row.title}: `));
      listed.sort((a, b) => b[1] - a[1]).forEach(([each, v], i) => {
        const unit = state.base ? " ×" : ` ${row.unit}`;
        values.append(element("span", "plot-value", `${each.label} ${digits(v)}${unit}${i < listed.length - 1 ? ", " : ""}`));
      });
    }

    function panel(rows, unit) {
      const width = Math.max(panels.clientWidth, 280), narrow = width < 620;
      const left = narrow ? 8 : Math.min(330, width * 0.42), right = 18, size = 12.5;
      const room = Math.floor((narrow ? width - 16 : left - 14) / (size * 0.53));
      const titles = rows.map((row) => wrap(row.title, room));
      const heights = titles.map((lines) => (narrow ? lines.length * 15 + 20 : Math.max(26, lines.length * 15 + 8)));
      const all = rows.flatMap((row) => shown().map((each) => value(row, each.key))).filter(Number.isFinite);
      const top = Math.max(...all, 1e-9) * 1.04;
      const x = (v) => left + (v / top) * (width - left - right);
      const bottom = heights.reduce((a, b) => a + b, 0) + 4;
      const svg = make("svg", { width, height: bottom + 38, role: "img", "aria-label": `rates in ${unit}` });
      for (const tick of ticks(top)) {
        svg.append(make("line", { x1: x(tick), x2: x(tick), y1: 2, y2: bottom, class: "plot-grid" }));
        svg.append(make("text", { x: x(tick), y: bottom + 15, class: "plot-tick", "text-anchor": "middle" }, +tick.toFixed(4)));
      }
      if (state.base && top > 1) svg.append(make("line", { x1: x(1), x2: x(1), y1: 2, y2: bottom, class: "plot-one" }));
      const name = data.providers.find((each) => each.key === state.base)?.label;
      svg.append(make("text", { x: (left + width - right) / 2, y: bottom + 33, class: "plot-tick", "text-anchor": "middle" },
        name ? `times as fast as ${name}` : `${unit}, more is better`));
      let y = 2;
      rows.forEach((row, i) => {
        const lane = make("g", { class: "plot-row", tabindex: 0 });
        const middle = narrow ? y + heights[i] - 11 : y + heights[i] / 2;
        lane.append(make("rect", { x: 0, y, width, height: heights[i], class: "plot-lane" }));
        titles[i].forEach((line, j) => {
          const first = narrow ? y + 12 : middle - (titles[i].length - 1) * 7.5 + 4;
          lane.append(make("text", { x: narrow ? 4 : left - 10, y: first + j * 15, class: "plot-title", "text-anchor": narrow ? "start" : "end" }, line));
        });
        lane.append(make("line", { x1: left, x2: width - right, y1: middle, y2: middle, class: "plot-rule" }));
        for (const each of [...shown()].reverse()) {  // ours last, on top
          const v = value(row, each.key);
          if (!Number.isFinite(v)) continue;
          const at = { class: `plot-mark ${each.role}`, style: `--dot:${color[each.key]}` };
          const px = x(v);
          lane.append(each.role === "ceiling"
            ? make("path", { ...at, d: `M${px} ${middle - 8}V${middle + 8}` })
            : make("circle", { ...at, cx: px, cy: middle, r: each.role === "ours" ? 5.5 : 4.5 }));
        }
        for (const event of ["pointerenter", "focus"]) lane.addEventListener(event, () => tell(row));
        svg.append(lane);
        y += heights[i];
      });
      return svg;
    }

    function draw() {
      const drawn = data.rows.filter((row) => row.rate[state.pass]);
      const units = state.base ? [["", drawn]] : [...new Set(drawn.map((row) => row.unit))].map(
        (unit) => [unit, drawn.filter((row) => row.unit === unit)]);
      for (const label of legend.children) {
        label.style.display = data.rows.some(has({ key: label.dataset.key })) ? "" : "none";
      }
      panels.replaceChildren(...units.map(([unit, rows]) => panel(rows, unit)));
      tell();
    }
    let last = 0;
    new ResizeObserver(() => {
      if (panels.clientWidth !== last) { last = panels.clientWidth; draw(); }
    }).observe(panels);
  }

  const all = () => document.querySelectorAll("figure.plot").forEach(start);
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();
