// The page: what is looked at, and what is drawn when.

/** Milliseconds that painting the map may take of one frame. */
const PAINT_MS = 9;

class Page {
  constructor(data) {
    this.data = data;
    this.lives = new Lives(data.blocks.birth, data.blocks.death);
    this.held = new Lives(data.runs.birth, data.runs.death);
    this.heldThere = data.layout && new Lives(data.layout.runs.birth, data.layout.runs.death);
    this.sums = new Sums(data, this.lives, this.held);
    this.events = data.series.events;
    this.view = { from: 0, to: this.events };
    this.event =
      data.figures.refused > 0 ? data.marks.refused.at(-1).event : data.figures.live_peak_event;
    this.highlighted = "";
    this.drawings = [];
    this.wants = { moving: false, still: false };
    this.timeline = new Timeline(this);
    this.map = new MemoryMap(this);
    this.instant = new Instant(this);
    this.flame = new Flame(this);
    this.search = new Search(this);
    this.panels();
    this.listen();
  }

  panels() {
    const { figures, head } = this.data;
    document.title = `${figures.name}: Girih report`;
    find("name").textContent = figures.name;
    const about = [`device ${figures.device}`, `${countText(figures.events)} events`];
    if (head.has_times) about.push(timeText(this.sums.time(this.events)));
    if (head.conf) about.push(head.conf);
    find("about").textContent = about.join(", ");
    find("made").textContent =
      `Made by girih ${head.version}. This page loads nothing and sends nothing.`;
    find("event").max = this.events - 1;
    drawTiles(this);
    drawAllocators(this);
    drawCopies(this);
    drawAgainst(this);
    drawNotes(this);
  }

  /** When it is that one looks at, in words. */
  when(event) {
    return `After ${this.what(event)}`;
  }

  /** An event with its step, its phase and its time. */
  what(event) {
    const { marks, head } = this.data;
    const step = above(marks.steps, event) - 1;
    const phase = above(marks.phases.start, event) - 1;
    const words = [`event ${countText(event)}`];
    if (step >= 0) words.push(`step ${step}`);
    const kind = phase >= 0 ? head.phases[marks.phases.kind[phase]] : "other";
    if (kind !== "other") words.push(kind);
    if (head.has_times) words.push(timeText(this.sums.time(event)));
    return words.join(", ");
  }

  /** The address of an offset on the lanes. */
  address(offset) {
    const { list } = this.data.lanes;
    let [from, to] = [0, list.length];
    while (from < to) {
      const middle = (from + to) >>> 1;
      if (list[middle].offset <= offset) from = middle + 1;
      else to = middle;
    }
    const lane = list[from - 1];
    return lane ? `0x${(lane.address + BigInt(offset - lane.offset)).toString(16)}` : "?";
  }

  /** The offset of an address; null if nothing was ever there. */
  offset(address) {
    const lane = this.data.lanes.list.find(
      (it) => it.address <= address && address < it.address + BigInt(it.size),
    );
    return lane ? lane.offset + Number(address - lane.address) : null;
  }

  blockText(index) {
    const { slots, slot, birth } = this.data.blocks;
    const is = slot[index];
    const stack = slots.stack[is];
    const line = stack > 0 ? `, ${this.data.stacks.lines[stack - 1]}` : "";
    return (
      `${bytesText(slots.size[is])} at ${this.address(slots.offset[is])}, ` +
      `${this.data.head.categories[slots.category[is]]}, from event ${countText(birth[index])}${line}`
    );
  }

  /** Chooses a block; goes to where it begins if that is asked for. */
  show(index, goes) {
    this.instant.chosen = index;
    if (goes) this.setEvent(this.data.blocks.birth[index], true);
    else this.redraw();
    find("block").scrollIntoView({ block: "nearest" });
  }

  setView(from, to) {
    const least = Math.min(this.events, 8);
    const span = Math.max(least, Math.min(this.events, to - from));
    const begin = Math.max(0, Math.min(this.events - span, from));
    this.view = { from: begin, to: begin + span };
    this.wants.moving = true;
    this.schedule();
  }

  zoom(factor, around = this.event) {
    const { from, to } = this.view;
    const at = Math.max(from, Math.min(to, around));
    this.setView(at - (at - from) * factor, at + (to - at) * factor);
  }

  /** Looks at an instant, and brings it into view if that is asked for. */
  setEvent(event, brings) {
    this.event = Math.max(0, Math.min(this.events - 1, Math.floor(event) || 0));
    const { from, to } = this.view;
    if (brings && (this.event < from || this.event >= to)) {
      this.setView(this.event - (to - from) / 2, this.event + (to - from) / 2);
    }
    this.redraw();
  }

  goToStep(step) {
    const { steps } = this.data.marks;
    const end = step + 1 < steps.length ? steps[step + 1] : this.events;
    const room = (end - steps[step]) * 0.1;
    this.setView(steps[step] - room, end + room);
    this.setEvent(steps[step]);
  }

  act(what) {
    const { steps } = this.data.marks;
    const step = above(steps, this.event) - 1;
    const span = this.view.to - this.view.from;
    const actions = {
      in: () => this.zoom(0.5),
      out: () => this.zoom(2),
      all: () => this.setView(0, this.events),
      step: () => step >= 0 && this.goToStep(step),
      peak: () => this.setEvent(this.data.figures.live_peak_event, true),
      next: () => this.setEvent(this.event + 1, true),
      last: () => this.setEvent(this.event - 1, true),
      right: () => this.setView(this.view.from + span / 10, this.view.to + span / 10),
      left: () => this.setView(this.view.from - span / 10, this.view.to - span / 10),
      "next step": () => step + 1 < steps.length && this.setEvent(steps[step + 1], true),
      "last step": () => step > 0 && this.setEvent(steps[step - 1], true),
    };
    actions[what]();
  }

  listen() {
    document.querySelectorAll("[data-do]").forEach((button) => {
      button.addEventListener("click", () => this.act(button.dataset.do));
    });
    find("event").addEventListener("change", () =>
      this.setEvent(Number(find("event").value), true),
    );
    const keys = {
      "+": "in",
      "=": "in",
      "-": "out",
      0: "all",
      s: "step",
      p: "peak",
      "]": "next step",
      "[": "last step",
      ArrowRight: "next",
      ArrowLeft: "last",
    };
    document.addEventListener("keydown", (event) => {
      const isText = event.target.matches("input:not([type=checkbox])");
      if (event.ctrlKey || event.metaKey || event.altKey || isText) return;
      if (event.key === "/") find("words").focus();
      else if (event.shiftKey && event.key === "ArrowRight") this.act("right");
      else if (event.shiftKey && event.key === "ArrowLeft") this.act("left");
      else if (keys[event.key]) this.act(keys[event.key]);
      else return;
      event.preventDefault();
    });
    const repaint = () => {
      styles.forget();
      this.map.forget();
      this.redraw();
    };
    // On paper everything is light, the canvases too, which have their colors painted in.
    const print = (isPaper) => {
      document.documentElement.classList.toggle("paper", isPaper);
      repaint();
      while (this.wants.moving) this.draw();
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    window.addEventListener("resize", () => this.redraw());
    window.addEventListener("beforeprint", () => print(true));
    window.addEventListener("afterprint", () => print(false));
  }

  redraw() {
    this.wants = { moving: true, still: true };
    this.schedule();
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  /** Draws what has changed: what moves with the view, and what only changes with the instant. */
  draw() {
    const { moving, still } = this.wants;
    this.wants = { moving: false, still: false };
    if (moving) {
      this.timeline.draw();
      if (this.map.draw(PAINT_MS)) {
        this.wants.moving = true;
        this.schedule();
      }
      this.sayDetail();
    }
    if (still) {
      if (document.activeElement !== find("event")) find("event").value = this.event;
      this.instant.draw();
      this.flame.draw();
      this.drawings.forEach((drawing) => drawing());
    }
  }

  sayDetail() {
    const { from, to } = this.view;
    const perPixel = (to - from) / Math.max(1, this.timeline.width);
    const shown = `Events ${countText(Math.max(0, from))} to ${countText(to)}`;
    const events = `${shown} of ${countText(this.events)}`;
    find("detail").textContent =
      perPixel > 1
        ? `${events}; a column of pixels shows the least and the most of ${countText(Math.max(2, perPixel))} events.`
        : `${events}; every event is drawn.`;
  }
}

async function open() {
  const data = await readAll();
  if (data.series.events === 0) throw new Error("the recording has no events");
  const page = new Page(data);
  page.wants = { moving: true, still: true };
  page.draw();
  page.openMs = performance.now();
  find("main").setAttribute("aria-busy", "false");
  if (location.hash === "#selftest") selftest(page);
  // For whoever drives the page from outside: to measure it, or from the console.
  window.girih = page;
}

open().catch((error) => {
  troubles.push(String(error));
  find("trouble").textContent =
    `This page cannot be drawn: ${error.message}. It needs a browser of 2023 or later.`;
  find("trouble").hidden = false;
  if (location.hash === "#selftest")
    document.body.append(make("pre", { id: "selftest" }, JSON.stringify({ troubles })));
});
