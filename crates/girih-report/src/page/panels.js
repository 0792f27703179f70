// Panels that do not change with the instant: figures, allocators and their waste, copies, another
// run, and what to know of the page.

const CAUSES = [
  ["pending_free", "freed, waiting for a stream"],
  ["rounding", "rounding"],
  ["remainder", "remainders in blocks"],
  ["other_pool", "in the other pool"],
  ["other_stream", "of another stream"],
  ["split_pinned", "pinned by a block"],
  ["page_granularity", "partly used pages"],
  ["cached_whole", "free and whole"],
];

function drawTiles(page) {
  const { figures } = page.data;
  const tile = (name, value, below) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value), make("dd", {}, below));
  const unused = figures.reserved_peak - figures.lower_bound;
  find("tiles").replaceChildren(
    tile(
      "requested at most",
      bytesText(figures.live_peak),
      `after event ${countText(figures.live_peak_event)}`,
    ),
    tile(
      "reserved at most",
      bytesText(figures.reserved_peak),
      `after event ${countText(figures.reserved_peak_event)}`,
    ),
    tile("lower bound", bytesText(figures.lower_bound), "no allocator can reserve less"),
    tile(
      "above the bound",
      bytesText(unused),
      figures.reserved_peak > 0
        ? `${percentText(unused / figures.reserved_peak)} of what was reserved`
        : "",
    ),
    tile("steps", countText(figures.steps), `${countText(figures.requests)} requests`),
    tile(
      "refused",
      countText(figures.refused),
      figures.refused === 0 ? "never out of memory" : "requests, out of memory",
    ),
  );
}

function drawAllocators(page) {
  const { figures } = page.data;
  if (figures.allocators.length === 0) return;
  find("allocators").hidden = false;
  const row = (name, allocated, reserved, share, over) => [
    name,
    bytesText(allocated),
    bytesText(reserved),
    share,
    over,
  ];
  // What is refused is left out, and the run goes on without it.
  const shareOf = (of) =>
    of.efficiency === null
      ? `does not fit: ${countText(of.refused)} refused`
      : percentText(of.efficiency);
  const rows = figures.allocators.map((of, i) => {
    const name = make("span", { title: of.about }, key(`a${i % 7}`), of.name);
    return row(
      name,
      of.allocated_peak,
      of.reserved_peak,
      shareOf(of),
      bytesText(Math.max(0, of.reserved_peak - figures.lower_bound)),
    );
  });
  rows.push(row("lower bound", figures.lower_bound, figures.lower_bound, percentText(1), "0 B"));
  fillTable(
    find("allocator-table"),
    [
      "allocator",
      ["allocated", "n"],
      ["reserved", "n"],
      ["efficiency", "n"],
      ["above the bound", "n"],
    ],
    rows,
  );
  find("allocators-legend").replaceChildren(
    ...figures.allocators.map((of, i) => make("span", {}, key(`a${i % 7}`), of.name)),
    make("span", {}, key("active"), "requested"),
    make("span", {}, key("bound"), "lower bound so far"),
  );
  page.drawings.push(() => drawReserved(page));
  const most = Math.max(
    1,
    ...figures.allocators.map((of) => of.waste.reduce((sum, { bytes }) => sum + bytes, 0)),
  );
  find("waste").replaceChildren(
    ...figures.allocators.map((of) => {
      const total = of.waste.reduce((sum, { bytes }) => sum + bytes, 0);
      const said = [];
      const bar = make("div", { class: "shares", role: "img" });
      CAUSES.forEach(([cause, about], i) => {
        const bytes = of.waste.find((it) => it.cause === cause)?.bytes ?? 0;
        if (bytes === 0) return;
        said.push(`${about} ${bytesText(bytes)}`);
        const part = make("span", { title: said.at(-1) });
        part.style.width = `${(bytes / most) * 100}%`;
        part.style.padding = "0";
        part.style.background = `var(--w${i})`;
        bar.append(part);
      });
      bar.setAttribute("aria-label", `${of.name}: ${said.join(", ") || "no waste"}`);
      return make(
        "div",
        { class: "waste-row" },
        make("span", {}, of.name),
        bar,
        make("span", { class: "n" }, bytesText(total)),
      );
    }),
  );
  find("waste-legend").replaceChildren(
    ...CAUSES.map(([, about], i) => make("span", {}, key(`w${i}`), about)),
  );
}

/** What each allocator would have reserved, one over the other, over what was requested. */
function drawReserved(page) {
  const { figures } = page.data;
  const { events } = page.data.series;
  const { pen, width, height } = fitted(find("allocators-chart"));
  const most =
    Math.max(1, figures.live_peak, ...figures.allocators.map((of) => of.reserved_peak)) * 1.04;
  const y = (bytes) => height - 1 - (bytes / most) * (height - 6);
  const columns = Math.round(width);
  const edge = (column) => Math.floor((column / columns) * events);
  const { timeline } = page;
  pen.font = FONT;
  pen.fillStyle = styles.color("active");
  pen.globalAlpha = 0.35;
  const range = (curve, column) =>
    timeline.column(curve, edge(column), Math.max(edge(column) + 1, edge(column + 1)));
  for (let x = 0; x < columns; x++) {
    const [, high] = range({ name: "requested" }, x);
    pen.fillRect(x, y(high), 1, height - y(high));
  }
  pen.globalAlpha = 1;
  const line = (curve, color, dash) => {
    pen.strokeStyle = styles.color(color);
    pen.lineWidth = 1.4;
    pen.setLineDash(dash);
    pen.beginPath();
    let last = NaN;
    for (let x = 0; x <= columns; x++) {
      const [, high] = range(curve, Math.min(x, columns - 1));
      if (high === last && x < columns) continue;
      if (x > 0) pen.lineTo(x, y(last));
      pen.lineTo(x, y(high));
      last = high;
    }
    pen.stroke();
    pen.setLineDash([]);
  };
  line({ name: "bound" }, "bound", [5, 3]);
  figures.allocators.forEach((_, i) =>
    line({ name: "", curve: page.data.curves[i] }, `a${i % 7}`, []),
  );
  pen.fillStyle = styles.color("quiet");
  pen.textBaseline = "bottom";
  for (const bytes of byteSteps(most, 4)) timeline.label(pen, bytesText(bytes), 4, y(bytes) - 1);
}

function drawCopies(page) {
  const { copies } = page.data;
  if (!copies) return;
  find("copies").hidden = false;
  const hidden = copies.copy_us > 0 ? copies.hidden_us / copies.copy_us : 1;
  find("copies-about").textContent =
    copies.copies.length === 0
      ? `Step ${copies.step} has ${bytesText(copies.gpu_peak)} on the GPU at most` +
        (copies.fits
          ? `: with ${bytesText(copies.gpu_budget)} nothing has to go to the host.`
          : ", and nothing can go to the host.")
      : `Step ${copies.step} with at most ${bytesText(copies.gpu_budget)} on the GPU, scheduled by ${copies.method}` +
        `${copies.fits ? "" : " (it does not fit)"}: ${bytesText(copies.bytes_out)} go to the host and come back in ` +
        `${countText(copies.copies.length)} copies. ${percentText(hidden)} of their time is hidden behind operators; the step takes ` +
        `${timeText(copies.step_us_swapped)} instead of ${timeText(copies.step_us)}, of which it waits ${timeText(copies.stall_us)}. ` +
        copies.assumed.map((it) => `Assumed: ${it}.`).join(" ");
  find("copies-legend").replaceChildren(
    make("span", {}, key("c0"), "forward"),
    make("span", {}, key("c1"), "backward"),
    make("span", {}, key("c2"), "optimizer"),
    make("span", {}, key("alarm"), "waiting"),
    make("span", {}, key("c4"), "to the host"),
    make("span", {}, key("c3"), "back"),
    make("span", {}, key("requested"), "on the GPU"),
    make("span", {}, key("reserved"), "without copies"),
  );
  const canvas = find("copies-chart");
  const draw = () => {
    const { pen, width, height } = fitted(canvas);
    const until = Math.max(1, copies.step_us_swapped, copies.step_us);
    const x = (us) => (us / until) * width;
    pen.font = FONT;
    pen.textBaseline = "middle";
    const lanes = [
      ["operators", 0],
      ["out", 1],
      ["in", 2],
    ];
    const box = (lane, from, to, color) => {
      pen.fillStyle = styles.color(color);
      pen.fillRect(x(from), lane * 20 + 2, Math.max(0.6, x(to) - x(from)), 15);
    };
    const passColors = { forward: "c0", backward: "c1", optimizer: "c2" };
    copies.passes.forEach(([from, pass], i) => {
      box(0, from, copies.passes[i + 1]?.[0] ?? copies.step_us_swapped, passColors[pass]);
    });
    copies.stalls.forEach(([from, to]) => box(0, from, to, "alarm"));
    copies.copies.forEach((copy) =>
      box(copy.is_out ? 1 : 2, copy.from_us, copy.to_us, copy.is_out ? "c4" : "c3"),
    );
    const [top, bottom] = [72, height - 18];
    const most = Math.max(copies.gpu_peak_unswapped, copies.gpu_budget, copies.gpu_peak) * 1.05;
    const y = (bytes) => bottom - (bytes / most) * (bottom - top);
    const line = (points, color, dash) => {
      pen.strokeStyle = styles.color(color);
      pen.lineWidth = 1.3;
      pen.setLineDash(dash);
      pen.beginPath();
      points.forEach(([us, bytes], i) => {
        if (i > 0) pen.lineTo(x(us), y(points[i - 1][1]));
        pen.lineTo(x(us), y(bytes));
      });
      pen.stroke();
      pen.setLineDash([]);
    };
    line(copies.gpu_bytes_unswapped, "reserved", []);
    line(copies.gpu_bytes, "requested", []);
    line(
      [
        [0, copies.gpu_budget],
        [until, copies.gpu_budget],
      ],
      "bound",
      [5, 3],
    );
    pen.fillStyle = styles.color("quiet");
    pen.textBaseline = "bottom";
    page.timeline.label(pen, `budget ${bytesText(copies.gpu_budget)}`, 4, y(copies.gpu_budget) - 2);
    lanes.forEach(([name, lane]) => {
      pen.textBaseline = "middle";
      page.timeline.label(pen, name, 4, lane * 20 + 10);
    });
    pen.textBaseline = "top";
    countSteps(0, until / 1000, width / 110).forEach((ms) => {
      if (x(ms * 1000) < width - 60) pen.fillText(`${countText(ms)} ms`, x(ms * 1000), bottom + 4);
    });
  };
  canvas.addEventListener("pointermove", (event) => {
    const us =
      (event.offsetX / canvas.clientWidth) * Math.max(copies.step_us_swapped, copies.step_us);
    const going = copies.copies.filter((copy) => copy.from_us <= us && us < copy.to_us);
    const isWait = copies.stalls.some(([from, to]) => from <= us && us < to);
    const pass = copies.passes.filter(([from]) => from <= us).at(-1)?.[1] ?? "";
    find("copies-tip").textContent =
      `${timeText(us)}, ${isWait ? "waiting" : pass}: ` +
      (going
        .map(
          (copy) =>
            `${bytesText(copy.bytes)} (request ${countText(copy.request)}) ${copy.is_out ? "to the host" : "back"}`,
        )
        .join(", ") || "no copy");
  });
  page.drawings.push(draw);
}

function drawAgainst(page) {
  const { figures } = page.data;
  const other = figures.against;
  if (!other) return;
  find("against").hidden = false;
  const change = figures.live_peak - other.live_peak;
  const signed = (bytes) => `${bytes < 0 ? "−" : "+"}${bytesText(Math.abs(bytes))}`;
  find("against-about").textContent =
    `${figures.name} requests ${bytesText(figures.live_peak)} at most, ${other.name} ${bytesText(other.live_peak)} ` +
    `(${signed(change)}); reserved ${bytesText(figures.reserved_peak)} and ${bytesText(other.reserved_peak)}. ` +
    "Both runs are drawn to the same width, by the share of their events.";
  find("against-legend").replaceChildren(
    make("span", {}, key("requested"), `requested, ${figures.name}`),
    make("span", {}, key("reserved"), `reserved, ${figures.name}`),
    make("span", {}, key("c1"), `requested, ${other.name}`),
    make("span", {}, key("c4"), `reserved, ${other.name}`),
  );
  page.drawings.push(() => {
    const { pen, width, height } = fitted(find("against-chart"));
    const most = Math.max(1, figures.reserved_peak, other.reserved_peak) * 1.05;
    const y = (bytes) => height - 2 - (bytes / most) * (height - 8);
    pen.font = FONT;
    const line = (color, count, at) => {
      pen.strokeStyle = styles.color(color);
      pen.lineWidth = 1.3;
      pen.beginPath();
      for (let i = 0; i < count; i++) pen.lineTo((i / Math.max(1, count - 1)) * width, y(at(i)));
      pen.stroke();
    };
    const own = (name) => {
      const { width: wide, events } = page.data.series;
      const count = Math.min(Math.ceil(events / wide), Math.round(width));
      const edge = (i) => Math.floor((i / count) * events);
      return [count, (i) => page.sums.range(name, edge(i), Math.max(edge(i) + 1, edge(i + 1)))[1]];
    };
    line("c4", other.reserved.length, (i) => other.reserved[i]);
    line("reserved", ...own("reserved"));
    line("c1", other.requested.length, (i) => other.requested[i]);
    line("requested", ...own("requested"));
    pen.fillStyle = styles.color("quiet");
    pen.textBaseline = "bottom";
    for (const bytes of byteSteps(most, 4))
      page.timeline.label(pen, bytesText(bytes), 4, y(bytes) - 1);
  });
  const side = (bytes, count) => `${bytesText(bytes)} in ${countText(count)}`;
  const rows = other.differences.map((of) => [
    of.where,
    signed(of.bytes_after - of.bytes_before),
    side(of.bytes_before, of.count_before),
    side(of.bytes_after, of.count_after),
    of.category,
  ]);
  fillTable(
    find("against-table"),
    [["line", "place"], ["change", "n"], [other.name, "n"], [figures.name, "n"], "for"],
    rows,
  );
}

function drawNotes(page) {
  const { head, figures, series, blocks } = page.data;
  const said = [
    "Requested is what live blocks asked for; active what they were granted, in blocks of 512 bytes; reserved what the " +
      "allocator held of the device. A freed block that a stream still holds is alive.",
    series.width === 1
      ? "The curves have every event."
      : `The curves have the least and the most of every ${countText(series.width)} events` +
        (head.left_out === 0
          ? "; zoomed in, they are added up from the blocks, event by event."
          : "."),
    head.left_out === 0
      ? `All ${countText(blocks.count)} blocks are in this page.`
      : `${countText(head.left_out)} of ${countText(blocks.count + head.left_out)} blocks are left out, to keep the file small: ` +
        `those with the fewest bytes for the shortest time. At no instant do they have more than ${bytesText(head.left_out_most)}; ` +
        "the curves and the figures have them.",
    "On the map a cell is the average of its addresses and events.",
  ];
  if (head.layout && !head.layout_shown) {
    said.push(`There is no room for where ${head.layout} would have placed the blocks.`);
  }
  if (!head.phases_shown) said.push("There are too many phases to show.");
  find("notes-list").replaceChildren(
    ...[...said, ...figures.warnings].map((text) => make("li", {}, text)),
  );
}
