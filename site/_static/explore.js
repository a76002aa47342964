// The page "Explore a schedule": controls, and what Schedule (schedule.js) says of them, drawn again at each change.
"use strict";
(() => {
  const COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"];
  const HIDDEN = 1024, INNER = 512, MOST = 3072, STEP = 32;
  const ROUTINGS = {
    even: ["even", Array(8).fill(512)],
    skewed: ["skewed", [1536, 832, 544, 384, 288, 224, 160, 128]],
    big: ["one big expert", [160, 160, 160, 160, 160, 2976, 160, 160]],
    empty: ["half of them empty", [1024, 0, 1024, 0, 1024, 0, 1024, 0]],
  };
  const PRODUCTS = { forward: "forward: more tokens, more tiles", gradient: "gradient of the weights: more tokens, longer tiles" };
  const ORDERS = {
    one_launch_per_problem: "a launch for each expert",
    round_robin: "one launch, round-robin",
    chunks: "one launch, in chunks",
    swizzled: "round-robin, swizzled",
    dynamic: "first free SM, by a counter",
    largest_first: "first free SM, longest tile first",
  };
  const TILES = { "64x64": [64, 64, 64], "64x128": [64, 128, 64], "128x128": [128, 128, 64], "128x256": [128, 256, 64], "256x256": [256, 256, 64] };
  const CACHES = { 62914560: "60 MiB, an H200's", 2097152: "2 MiB", 524288: "½ MiB", 0: "none" };
  const state = { tokens: [...ROUTINGS.skewed[1]], product: "forward", tile: "128x256", order: "one_launch_per_problem", sms: 32, cache: "62914560" };

  const root = document.getElementById("explore");
  const make = (name, className = "", attributes = {}, text) => {
    const node = document.createElement(name);
    node.className = className;
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const us = (value) => `${value.toFixed(value < 99.95 ? 1 : 0)} µs`;
  const mb = (value) => `${(value / 1e6).toFixed(value < 9.95e6 ? 1 : 0)} MB`;
  const whole = (value) => value.toLocaleString("en");
  const name = (tile) => tile.replace("x", " × ");
  const group = (title, className) => {
    const box = make("fieldset", className);
    box.append(make("legend", "", {}, title));
    root.append(box);
    return box;
  };

  // A bar for each expert. It is a slider: arrows, Page Up and Down, Home, End, or a pointer.
  const routing = group("Tokens of each expert", "explore-routing");
  const presets = make("div", "explore-presets"), bars = make("div", "explore-bars");
  for (const [label, tokens] of Object.values(ROUTINGS)) {
    const button = make("button", "", { type: "button" }, label);
    button.addEventListener("click", () => { state.tokens = [...tokens]; draw(); });
    presets.append(button);
  }
  const sliders = COLORS.map((color, expert) => {
    const column = make("div", "explore-column"), value = make("span", "explore-value", { "aria-hidden": "true" });
    const bar = make("div", "explore-bar", {
      role: "slider", tabindex: 0, "aria-label": `Tokens of expert ${expert}`, "aria-orientation": "vertical",
      "aria-valuemin": 0, "aria-valuemax": MOST,
    });
    const fill = make("div", "explore-fill");
    fill.style.background = color;
    bar.append(fill);
    column.append(value, bar, make("span", "explore-expert", { "aria-hidden": "true" }, expert));
    bars.append(column);
    const set = (tokens) => { state.tokens[expert] = Math.max(0, Math.min(MOST, Math.round(tokens / STEP) * STEP)); draw(); };
    const at = (event) => {
      const box = bar.getBoundingClientRect();
      set((box.bottom - event.clientY) / box.height * MOST);
    };
    bar.addEventListener("pointerdown", (event) => { bar.setPointerCapture(event.pointerId); bar.focus(); at(event); });
    bar.addEventListener("pointermove", (event) => { if (bar.hasPointerCapture(event.pointerId)) at(event); });
    bar.addEventListener("keydown", (event) => {
      const now = state.tokens[expert];
      const to = { ArrowUp: now + STEP, ArrowRight: now + STEP, ArrowDown: now - STEP, ArrowLeft: now - STEP,
                   PageUp: now + 8 * STEP, PageDown: now - 8 * STEP, Home: 0, End: MOST }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      set(to);
    });
    return { bar, fill, value };
  });
  routing.append(presets, bars);

  const machine = group("Product and GPU", "explore-machine");
  const choose = (label, options, key) => {
    const box = make("label", "", {}, label), select = make("select");
    for (const [value, text] of Object.entries(options)) select.append(new Option(text, value));
    select.addEventListener("change", () => { state[key] = select.value; draw(); });
    box.append(select);
    machine.append(box);
    return () => { select.value = state[key]; };
  };
  const show = [choose("Product", PRODUCTS, "product"), choose("L2 cache", CACHES, "cache")];
  const smsLabel = make("label"), smsText = make("span"), sms = make("input", "", { type: "range", min: 4, max: 132, step: 4 });
  sms.addEventListener("input", () => { state.sms = +sms.value; draw(); });
  smsLabel.append(smsText, sms);
  machine.append(smsLabel);

  // Choices whose bars say what each of them would take.
  const compare = (title, options, key) => {
    const box = group(title, "explore-compare");
    const rows = Object.entries(options).map(([value, text]) => {
      const row = make("label"), input = make("input", "", { type: "radio", name: `explore-${key}`, value });
      const time = make("span", "explore-time"), length = make("span", "explore-length"), track = make("span", "explore-track");
      input.addEventListener("change", () => { state[key] = value; draw(); });
      track.append(length);
      row.append(input, make("span", "explore-name", {}, text), track, time);
      box.append(row);
      return { value, input, time, length };
    });
    return (timeOf) => {
      const times = rows.map(({ value }) => timeOf(value)), most = Math.max(...times, 1e-9);
      rows.forEach(({ value, input, time, length }, i) => {
        input.checked = value === state[key];
        time.textContent = us(times[i]);
        length.style.width = `${100 * times[i] / most}%`;
      });
    };
  };
  const showOrders = compare("Order of tiles, and the time it takes", ORDERS, "order");
  const showTiles = compare("Size of a tile, and the time it takes", Object.fromEntries(Object.keys(TILES).map((each) => [each, name(each)])), "tile");

  const numbers = make("dl", "explore-numbers");
  const number = ["time", "SMs busy", "tiles read", "from memory"].map((title) => {
    const box = make("div"), value = make("dd");
    box.append(make("dt", "", {}, title), value);
    numbers.append(box);
    return value;
  });
  const canvas = make("canvas", "explore-timeline", { role: "img" });
  const readout = make("p", "explore-readout", { "aria-hidden": "true" });
  const summary = make("p", "explore-summary", { "aria-live": "polite" });
  const result = make("div", "explore-result");
  result.append(numbers, canvas);
  root.append(result, readout, summary);

  const problems = () => state.tokens.map((t) => (state.product === "forward" ? [t, INNER, HIDDEN] : [HIDDEN, INNER, t]));
  const simulate = (changed = {}) => {
    const { order, tile, sms: programs } = { ...state, ...changed };
    return Schedule.simulate(problems(), order, programs, TILES[tile]);
  };
  let shown, last, speak;
  const HINT = "A row is an SM, a box a tile in the colour of its expert. Striped: the SM waits. Point at a box for its times.";

  function draw() {
    sliders.forEach(({ bar, fill, value }, expert) => {
      const tokens = state.tokens[expert];
      bar.setAttribute("aria-valuenow", tokens);
      bar.setAttribute("aria-valuetext", `${whole(tokens)} tokens`);
      fill.style.height = `${100 * tokens / MOST}%`;
      value.textContent = whole(tokens);
    });
    show.forEach((each) => each());
    sms.value = state.sms;
    smsText.textContent = `SMs: ${state.sms}`;
    shown = simulate();
    const times = Object.fromEntries(Object.keys(ORDERS).map((order) => [order, simulate({ order }).makespan]));
    showOrders((order) => times[order]);
    // The same scale for all orders that hand out tiles well, so that a better one is seen to be shorter.
    last = Math.max(shown.makespan, times.round_robin, times.dynamic, times.largest_first);
    showTiles((tile) => simulate({ tile }).makespan);
    const traffic = Schedule.bytesMoved(shown, +state.cache), percent = `${(100 * shown.utilisation).toFixed(0)} %`;
    number[0].textContent = us(shown.makespan);
    number[1].textContent = percent;
    number[2].textContent = mb(traffic.requested);
    number[3].textContent = mb(traffic.fromMemory);
    const total = state.tokens.reduce((a, b) => a + b, 0), least = Math.max(shown.bounds.work, shown.bounds.longest);
    const said = `${whole(total)} tokens give ${whole(shown.tiles)} tiles of ${name(state.tile)} on ${state.sms} SMs, ` +
      `${ORDERS[state.order]}: ${us(shown.makespan)}. The SMs compute ${percent} of that time; the first has nothing left to do ` +
      `${us(shown.tail)} before the end. No order of these tiles ends before ${us(least)}. The tiles read ${mb(traffic.requested)}, ` +
      `of which memory delivers ${mb(traffic.fromMemory)}, at least ${mb(traffic.compulsory)}, and write ${mb(traffic.written)}.`;
    canvas.setAttribute("aria-label", `Timeline of ${state.sms} SMs. The text below has its numbers.`);
    readout.textContent = HINT;
    clearTimeout(speak);  // after a drag, not during it
    speak = setTimeout(() => { summary.textContent = said; }, summary.textContent ? 250 : 0);
    paint();
  }

  const LEFT = 30, TOP = 16, BOTTOM = 34;
  const place = () => {
    const width = canvas.clientWidth, height = canvas.clientHeight;
    return { width, height, x: (t) => LEFT + t / last * (width - LEFT - 12), row: (height - TOP - BOTTOM) / state.sms };
  };

  function paint() {
    const { width, height, x, row } = place(), scale = window.devicePixelRatio || 1, pen = canvas.getContext("2d");
    if (!width || !last) return;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    pen.scale(scale, scale);
    const style = getComputedStyle(root), text = style.getPropertyValue("--pst-color-text-muted"), strong = style.color;
    const least = Math.max(shown.bounds.work, shown.bounds.longest), end = shown.makespan;
    pen.save();
    pen.beginPath();
    pen.rect(x(0), TOP, x(end) - x(0), row * state.sms);
    pen.clip();
    pen.strokeStyle = text;
    pen.globalAlpha = 0.45;
    for (let i = -height; i < width; i += 7) {
      pen.beginPath();
      pen.moveTo(i, TOP + row * state.sms);
      pen.lineTo(i + row * state.sms, TOP);
      pen.stroke();
    }
    pen.restore();
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const gapY = row > 4 ? 1 : 0;
    shown.programs.forEach((line, p) => {
      for (const { tile, start, end: until } of line) {
        const left = x(start), wide = x(until) - left;
        pen.fillStyle = COLORS[tile.problem];
        pen.fillRect(left, TOP + p * row, Math.max(wide - (wide > 3 ? 1 : 0), 0.5), row - gapY);
        if (wide > 14 && row > 11) {
          pen.fillStyle = [0, 5].includes(tile.problem) ? "#fff" : "#111";
          pen.fillText(tile.problem, left + 3, TOP + p * row + row / 2);
        }
      }
    });
    pen.fillStyle = text;
    pen.strokeStyle = text;
    pen.textAlign = "center";
    const bottom = TOP + row * state.sms, rough = last / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    for (let t = 0; t <= last; t += step) pen.fillText(`${+t.toFixed(3)}`, x(t), bottom + 12);
    pen.fillText("µs", width - 8, bottom + 12);
    pen.save();
    pen.translate(10, TOP + row * state.sms / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(`SM 0 to ${state.sms - 1}`, 0, 0);
    pen.restore();
    const rule = (t, label, dashes, color, y) => {
      pen.setLineDash(dashes);
      pen.strokeStyle = pen.fillStyle = color;
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x(t), TOP - 4);
      pen.lineTo(x(t), bottom + (y > bottom ? 18 : 0));
      pen.stroke();
      const half = pen.measureText(label).width / 2;
      pen.fillText(label, Math.min(Math.max(x(t), half + 2), width - half - 2), y);
    };
    if (shown.tiles) {
      rule(least, `no order before ${us(least)}`, [4, 3], strong, bottom + 26);
      rule(end, `end: ${us(end)}`, [], strong, 6);
    }
    pen.setLineDash([]);
  }

  canvas.addEventListener("pointermove", (event) => {
    const { x, row } = place(), p = Math.floor((event.offsetY - TOP) / row);
    const found = shown.programs[p]?.find(({ start, end }) => x(start) <= event.offsetX && event.offsetX < x(end));
    const tokens = found && whole(state.tokens[found.tile.problem]);
    readout.textContent = found
      ? `SM ${p}: expert ${found.tile.problem} (${tokens} tokens), its tile in row ${found.tile.m}, column ${found.tile.n}: from ${us(found.start)} to ${us(found.end)}`
      : HINT;
  });
  canvas.addEventListener("pointerleave", () => { readout.textContent = HINT; });

  document.querySelectorAll("button[data-explore]").forEach((button) => button.addEventListener("click", () => {
    const { routing: preset, ...others } = JSON.parse(button.dataset.explore);
    Object.assign(state, others, preset && { tokens: [...ROUTINGS[preset][1]] });
    draw();
    root.scrollIntoView({ block: "start" });
  }));
  new ResizeObserver(() => paint()).observe(canvas);
  new MutationObserver(() => paint()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  draw();
})();
