// The timeline: curves over events, with steps and phases above them. The view and the instant that
// is looked at belong to the page; this draws them, and changes them by hand and key.

const STEP_BAND = 16;
const PHASE_BAND = 7;
const AXIS = 18;
const PHASE_COLORS = ["c5", "c0", "c1", "c2", "c4", "c5"];

class Timeline {
  constructor(page) {
    this.page = page;
    this.canvas = find("chart");
    this.curves = [
      { name: "reserved", title: "reserved", color: "reserved", fill: "held" },
      { name: "active", title: "active", color: "active", fill: "active" },
      { name: "requested", title: "requested", color: "requested" },
      { name: "bound", title: "lower bound so far", color: "bound", dash: [5, 3] },
    ];
    page.data.figures.allocators.forEach((allocator, i) => {
      const curve = page.data.curves[i];
      this.curves.push({
        name: `of ${allocator.name}`,
        title: `reserved by ${allocator.name}`,
        color: `a${i % 7}`,
        curve,
        isOff: true,
      });
    });
    this.legend();
    this.listen();
  }

  legend() {
    const buttons = this.curves.map((curve) => {
      const button = make(
        "button",
        { type: "button", "aria-pressed": String(!curve.isOff) },
        key(curve.color),
        curve.title,
      );
      button.addEventListener("click", () => {
        curve.isOff = !curve.isOff;
        button.setAttribute("aria-pressed", String(!curve.isOff));
        this.page.redraw();
      });
      return button;
    });
    find("legend").replaceChildren(...buttons);
    const { head, marks } = this.page.data;
    const kinds = [1, 2, 3, 4].filter((kind) => marks.phases.kind.includes(kind));
    find("phase-legend").replaceChildren(
      ...kinds.map((kind) => make("span", {}, key(PHASE_COLORS[kind]), head.phases[kind])),
    );
  }

  /** Bytes at the top of the axis. */
  most() {
    const { figures } = this.page.data;
    let most = Math.max(figures.reserved_peak, figures.live_peak, 1);
    this.curves.forEach((curve, i) => {
      if (curve.curve && !curve.isOff)
        most = Math.max(most, figures.allocators[i - 4].reserved_peak);
    });
    return most * 1.06;
  }

  x(event) {
    const { from, to } = this.page.view;
    return ((event - from) / (to - from)) * this.width;
  }

  eventAt(x) {
    const { from, to } = this.page.view;
    return Math.floor(from + (x / this.width) * (to - from));
  }

  draw() {
    const { pen, width, height } = fitted(this.canvas);
    const { page } = this;
    const { from, to } = page.view;
    Object.assign(this, { width, height });
    const [top, bottom] = [STEP_BAND + PHASE_BAND + 4, height - AXIS];
    const most = this.most();
    const y = (bytes) => bottom - (bytes / most) * (bottom - top);
    page.sums.refine(from, to);
    pen.font = FONT;
    for (const curve of this.curves) {
      if (!curve.isOff) this.drawCurve(pen, curve, y, bottom);
    }
    this.drawGrid(pen, y, most, top, bottom);
    this.drawMarks(pen, bottom);
    this.drawCursor(pen, top, bottom);
  }

  /** The least and the most of a curve in a column of pixels. */
  column(curve, from, to) {
    const { sums } = this.page;
    if (curve.name === "bound") {
      const { width, count } = sums.series;
      const most = sums.bound[Math.min(count - 1, Math.floor((to - 1) / width))];
      return [most, most];
    }
    if (!curve.curve) return sums.range(curve.name, from, to);
    const { event, value } = curve.curve;
    const last = above(event, to - 1);
    let at = Math.max(0, above(event, from) - 1);
    let [low, high] = [Infinity, 0];
    for (; at < last; at++) {
      low = Math.min(low, value[at]);
      high = Math.max(high, value[at]);
    }
    return low === Infinity ? [0, 0] : [low, high];
  }

  /**
   * The columns of a curve: one for each pixel, or one for each event where those are wider. Each
   * is where it begins and ends on the screen, its least, and its most.
   */
  columns(curve) {
    const { view, data } = this.page;
    const events = data.series.events;
    const perPixel = (view.to - view.from) / this.width;
    const columns = [];
    if (perPixel < 1) {
      const last = Math.min(events, Math.ceil(view.to));
      for (let at = Math.max(0, Math.floor(view.from)); at < last; at++) {
        // At whole pixels, so that areas have no seams.
        columns.push([
          Math.round(this.x(at)),
          Math.round(this.x(at + 1)),
          ...this.column(curve, at, at + 1),
        ]);
      }
      return columns;
    }
    for (let left = 0; left < this.width; left++) {
      const from = Math.max(0, Math.floor(view.from + left * perPixel));
      const to = Math.min(
        events,
        Math.max(from + 1, Math.floor(view.from + (left + 1) * perPixel)),
      );
      if (from < events) columns.push([left, left + 1, ...this.column(curve, from, to)]);
    }
    return columns;
  }

  // Upright rectangles alone: a browser without a GPU draws them at once, and a jagged line slowly.
  drawCurve(pen, curve, y, bottom) {
    const columns = this.columns(curve);
    if (curve.dash) return this.drawDashed(pen, curve, columns, y);
    if (curve.fill) {
      pen.globalAlpha = curve.name === "active" ? 0.28 : 0.45;
      pen.fillStyle = styles.color(curve.fill);
      for (const [left, right, , high] of columns)
        pen.fillRect(left, y(high), right - left, bottom - y(high));
      pen.globalAlpha = 1;
    }
    pen.fillStyle = styles.color(curve.color);
    const thick = curve.name === "requested" ? 1.5 : 1.2;
    let last = null;
    for (const [left, right, low, high] of columns) {
      // Down or up to the column before, so that the curve has no gaps.
      const top = y(last ? Math.max(high, last[0]) : high) - thick / 2;
      const under = y(last ? Math.min(low, last[1]) : low) + thick / 2;
      pen.fillRect(left, top, right - left > thick ? thick : right - left, under - top);
      if (right - left > thick) pen.fillRect(left, y(high) - thick / 2, right - left, thick);
      last = [low, high];
    }
  }

  drawDashed(pen, curve, columns, y) {
    pen.strokeStyle = styles.color(curve.color);
    pen.lineWidth = 1.2;
    pen.setLineDash(curve.dash);
    pen.beginPath();
    let last = NaN;
    columns.forEach(([left, right, , high], i) => {
      if (high === last && i + 1 < columns.length) return;
      if (i > 0) pen.lineTo(left, y(i + 1 < columns.length ? last : high));
      pen.lineTo(left, y(high));
      pen.lineTo(right, y(high));
      last = high;
    });
    pen.stroke();
    pen.setLineDash([]);
  }

  drawGrid(pen, y, most, top, bottom) {
    pen.fillStyle = styles.color("quiet");
    pen.strokeStyle = styles.color("grid");
    pen.lineWidth = 1;
    pen.textBaseline = "bottom";
    pen.textAlign = "left";
    for (const bytes of byteSteps(most, 5)) {
      const at = Math.round(y(bytes)) + 0.5;
      if (at < top + 10) continue;
      pen.beginPath();
      pen.moveTo(0, at);
      pen.lineTo(this.width, at);
      pen.stroke();
      this.label(pen, bytesText(bytes), 4, at - 1);
    }
    const { from, to } = this.page.view;
    pen.textBaseline = "top";
    pen.textAlign = "center";
    pen.beginPath();
    for (const event of countSteps(Math.max(0, from), to, Math.max(2, this.width / 110))) {
      const at = this.x(event);
      pen.moveTo(at, bottom);
      pen.lineTo(at, bottom + 4);
      const text = countText(event);
      const half = pen.measureText(text).width / 2;
      if (at - half >= 0 && at + half <= this.width) pen.fillText(text, at, bottom + 5);
    }
    pen.moveTo(0, bottom + 0.5);
    pen.lineTo(this.width, bottom + 0.5);
    pen.stroke();
  }

  /** Text that can be read over curves. */
  label(pen, text, x, y) {
    pen.lineWidth = 3;
    pen.lineJoin = "round";
    pen.strokeStyle = styles.color("paper");
    pen.strokeText(text, x, y);
    pen.fillText(text, x, y);
    pen.strokeStyle = styles.color("grid");
    pen.lineWidth = 1;
  }

  drawMarks(pen, bottom) {
    const { view, data } = this.page;
    const { steps, phases, refused } = data.marks;
    pen.textBaseline = "middle";
    let at = Math.max(0, above(steps, view.from) - 1);
    const last = above(steps, view.to);
    // Where steps are narrower than a few pixels, one box stands for several.
    const stride = Math.max(1, Math.ceil(((last - at) * 3) / this.width));
    at -= at % stride;
    pen.textAlign = "left";
    for (; at < last; at += stride) {
      const left = Math.max(0, this.x(steps[at]));
      const end = at + stride < steps.length ? steps[at + stride] : data.series.events;
      const right = Math.min(this.width, this.x(end));
      if (right <= 0) continue;
      pen.fillStyle = styles.color((at / stride) % 2 ? "idle" : "held");
      pen.fillRect(left, 0, Math.max(0.5, right - left - 0.5), STEP_BAND);
      const text = right - left > 64 ? `step ${at}` : String(at);
      if (stride === 1 && pen.measureText(text).width + 8 < right - left) {
        pen.fillStyle = styles.color("ink");
        pen.fillText(text, left + 4, STEP_BAND / 2 + 0.5);
      }
    }
    this.drawPhases(pen, phases);
    pen.fillStyle = styles.color("alarm");
    for (const { event } of refused) {
      if (event < view.from || event > view.to) continue;
      const x = this.x(event + 0.5);
      pen.fillRect(x - 0.5, STEP_BAND, 1.5, bottom - STEP_BAND);
      pen.textAlign = x > this.width - 90 ? "right" : "left";
      pen.textBaseline = "top";
      pen.fillText("out of memory", x + (x > this.width - 90 ? -4 : 4), STEP_BAND + PHASE_BAND + 4);
    }
  }

  drawPhases(pen, phases) {
    const { view, data } = this.page;
    const { start, kind } = phases;
    let at = Math.max(0, above(start, view.from) - 1);
    const last = above(start, view.to);
    let drawn = -1;
    for (; at < last; at++) {
      const end = at + 1 < start.length ? start[at + 1] : data.series.events;
      const right = Math.min(this.width, this.x(end));
      // Narrower than half a pixel beyond what is drawn: nobody would see it.
      if (right < drawn + 0.5) continue;
      const left = Math.max(0, drawn, this.x(start[at]));
      if (kind[at] !== 0 && kind[at] !== 5) {
        pen.fillStyle = styles.color(PHASE_COLORS[kind[at]]);
        pen.fillRect(left, STEP_BAND + 1, Math.max(0.5, right - left), PHASE_BAND - 1);
      }
      drawn = right;
    }
  }

  drawCursor(pen, top, bottom) {
    const at = this.x(this.page.event + 0.5);
    if (at < 0 || at > this.width) return;
    pen.strokeStyle = styles.color("ink");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(at) + 0.5, top - 4);
    pen.lineTo(Math.round(at) + 0.5, bottom);
    pen.stroke();
  }

  tip(x) {
    const { page } = this;
    const tip = find("tip");
    const event = this.eventAt(x);
    if (event < 0 || event >= page.data.series.events) return this.noTip();
    const perPixel = Math.max(1, (page.view.to - page.view.from) / this.width);
    const to = Math.min(page.data.series.events, Math.max(event + 1, Math.floor(event + perPixel)));
    const rows = this.curves
      .filter((curve) => !curve.isOff)
      .map((curve) => {
        const [low, high] = this.column(curve, event, to);
        const range = low < high ? `${bytesText(low)} to ${bytesText(high)}` : bytesText(high);
        return make(
          "tr",
          {},
          make("td", {}, key(curve.color), curve.title),
          make("td", { class: "n" }, range),
        );
      });
    tip.replaceChildren(make("div", {}, page.when(event)), make("table", {}, ...rows));
    tip.hidden = false;
    const left = x + 14 + tip.offsetWidth > this.width ? x - 14 - tip.offsetWidth : x + 14;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${STEP_BAND + PHASE_BAND + 6}px`;
  }

  noTip() {
    find("tip").hidden = true;
  }

  /** Dragging, the wheel and clicks, on the chart and on the map below it. */
  listen() {
    for (const canvas of [this.canvas, find("map")]) {
      let held = null;
      canvas.addEventListener("pointerdown", (event) => {
        held = { x: event.offsetX, view: { ...this.page.view }, isDrag: false };
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (held && Math.abs(event.offsetX - held.x) > 4) held.isDrag = true;
        if (held && held.isDrag) {
          const { from, to } = held.view;
          const moved = ((held.x - event.offsetX) / this.width) * (to - from);
          this.page.setView(from + moved, to + moved);
          this.noTip();
        } else if (canvas === this.canvas) {
          this.tip(event.offsetX);
        }
      });
      canvas.addEventListener("pointerup", (event) => {
        if (held && !held.isDrag) this.page.setEvent(this.eventAt(event.offsetX));
        held = null;
      });
      canvas.addEventListener("pointercancel", () => (held = null));
      canvas.addEventListener("pointerleave", () => this.noTip());
      canvas.addEventListener("dblclick", (event) =>
        this.page.zoom(0.25, this.eventAt(event.offsetX)),
      );
      canvas.addEventListener(
        "wheel",
        (event) => {
          if (event.ctrlKey || event.metaKey) {
            this.page.zoom(1.0015 ** event.deltaY, this.eventAt(event.offsetX));
          } else if (event.deltaX !== 0) {
            const { from, to } = this.page.view;
            const moved = (event.deltaX / this.width) * (to - from);
            this.page.setView(from + moved, to + moved);
          } else return;
          event.preventDefault();
        },
        { passive: false },
      );
    }
  }
}
