// The schedule of a grouped GEMM: course_kernels.schedule (orders.py, simulate.py, traffic.py) in JavaScript, number for
// number. A test compares them. A tile is {problem, m, n, rows, cols, k}, a span {tile, start, end}; times are in µs.
"use strict";
window.Schedule = (() => {
  const COST = { tflops: 5.0, loadGb: 112.0, storeGb: 32.0, startup: 1.0, atomic: 0.7, launch: 4.0, itemsize: 2 };
  const STATIC = ["round_robin", "chunks", "swizzled"];
  const cdiv = (a, b) => Math.ceil(a / b);

  function tileUs(k, [blockM, blockN, blockK]) {
    const arithmetic = 2 * blockM * blockN * blockK / (COST.tflops * 1e6);
    const loads = (blockM + blockN) * blockK * COST.itemsize / (COST.loadGb * 1e3);
    const epilogue = blockM * blockN * COST.itemsize / (COST.storeGb * 1e3);
    return COST.startup + cdiv(k, blockK) * Math.max(arithmetic, loads) + epilogue;
  }

  function tiles(problems, blockM, blockN, groupM) {
    const found = [];
    problems.forEach(([M, N, k], problem) => {
      const tilesM = cdiv(M, blockM), tilesN = cdiv(N, blockN), width = groupM * tilesN;
      for (let i = 0; i < tilesM * tilesN; i++) {
        const firstM = Math.floor(i / width) * groupM, height = Math.min(tilesM - firstM, groupM);
        const m = firstM + (i % width) % height, n = Math.floor((i % width) / height);
        found.push({ problem, m, n, k, rows: Math.min(blockM, M - m * blockM), cols: Math.min(blockN, N - n * blockN) });
      }
    });
    return found;
  }

  function dealt(found, order, programs) {
    const chunk = cdiv(found.length, programs), shares = Array.from({ length: programs }, () => []);
    found.forEach((tile, i) => shares[order === "chunks" ? Math.floor(i / chunk) : i % programs].push(tile));
    return shares;
  }

  // Give each tile to the program that is free first; of two, to the lower one. `free` is a heap of [time, program].
  function firstFree(queue, usOf, lines, start, fetch) {
    const free = lines.map((_, p) => [start, p]), before = (a, b) => a[0] < b[0] || (a[0] === b[0] && a[1] < b[1]);
    for (const tile of queue) {
      const [now, p] = free[0], begin = now + fetch, end = begin + usOf(tile.k);
      lines[p].push({ tile, start: begin, end });
      const item = [end, p];
      let at = 0;
      for (;;) {
        let child = 2 * at + 1;
        if (child + 1 < free.length && before(free[child + 1], free[child])) child += 1;
        if (child >= free.length || before(item, free[child])) break;
        free[at] = free[child];
        at = child;
      }
      free[at] = item;
    }
  }

  // `order` is one of ORDERS of the Python, or "one_launch_per_problem".
  function simulate(problems, order, programs, block) {
    const usOf = (k) => tileUs(k, block), lines = Array.from({ length: programs }, () => []);
    const found = tiles(problems, block[0], block[1], order === "swizzled" ? 8 : 1);
    if (STATIC.includes(order)) {
      dealt(found, order, programs).forEach((share, p) => {
        let now = 0;
        for (const tile of share) lines[p].push({ tile, start: now, end: now += usOf(tile.k) });
      });
    } else if (order === "largest_first") {
      firstFree([...found].sort((a, b) => usOf(b.k) - usOf(a.k)), usOf, lines, 0, 0);
    } else if (order === "dynamic") {
      firstFree(found, usOf, lines, 0, COST.atomic);
    } else {
      let start = 0;
      problems.forEach((_, problem) => {
        const queue = found.filter((tile) => tile.problem === problem);
        if (!queue.length) return;
        firstFree(queue, usOf, lines, start, 0);
        start = makespanOf(lines) + COST.launch;
      });
    }
    const busy = lines.map((line) => line.reduce((sum, each) => sum + (each.end - each.start), 0));
    const finish = lines.map((line) => (line.length ? line.at(-1).end : 0)), makespan = makespanOf(lines);
    const work = busy.reduce((a, b) => a + b, 0) / programs;
    return {
      programs: lines, makespan, busy, finish, tiles: found.length,
      utilisation: found.length ? work / makespan : 1,
      bounds: { work, longest: lines.flat().reduce((most, each) => Math.max(most, each.end - each.start), 0) },
      tail: makespan - Math.min(...finish),
    };
  }
  const makespanOf = (lines) => lines.reduce((most, line) => Math.max(most, line.length ? line.at(-1).end : 0), 0);

  function bytesMoved(timeline, l2Bytes, kSlab = 256) {
    const asks = [], result = { requested: 0, fromMemory: 0, compulsory: 0, written: 0 };
    timeline.programs.forEach((line, program) => {
      for (const { tile, start, end } of line) {
        result.written += tile.rows * tile.cols * COST.itemsize;
        const slabs = cdiv(tile.k, kSlab), step = slabs ? (end - start) / slabs : 0;
        for (let slab = 0; slab < slabs; slab++) asks.push({ time: start + slab * step, program, slab, tile });
      }
    });
    asks.sort((a, b) => a.time - b.time || a.program - b.program);
    const cached = new Map(), seen = new Set();  // a Map keeps the order of insertion: the first was used longest ago
    let held = 0;
    for (const { slab, tile } of asks) {
      const depth = Math.min(kSlab, tile.k - slab * kSlab) * COST.itemsize;
      for (const [piece, size] of [[`A ${tile.problem} ${tile.m} ${slab}`, tile.rows * depth],
                                   [`B ${tile.problem} ${tile.n} ${slab}`, tile.cols * depth]]) {
        result.requested += size;
        if (cached.delete(piece)) {
          cached.set(piece, size);
          continue;
        }
        result.fromMemory += size;
        if (!seen.has(piece)) result.compulsory += size;
        seen.add(piece);
        cached.set(piece, size);
        held += size;
        while (held > l2Bytes) {
          const [oldest, bytes] = cached.entries().next().value;
          cached.delete(oldest);
          held -= bytes;
        }
      }
    }
    return result;
  }

  return { simulate, bytesMoved };
})();
