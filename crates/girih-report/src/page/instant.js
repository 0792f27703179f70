// Memory at an instant: every segment that is held, laid end to end by address in lines as text is,
// with the blocks that are alive in it.

const LINE = 15;
const LINES_MAX = 28;

class Instant {
  constructor(page) {
    this.page = page;
    this.canvas = find("places");
    this.chosen = null;
    this.layout = "recorded";
    this.layouts();
    find("instant-legend").replaceChildren(
      ...page.data.head.categories.map((name, kind) => make("span", {}, key(`c${kind}`), name)),
      make("span", {}, key("idle"), "held, idle"),
    );
    this.canvas.addEventListener("click", (event) => {
      const hit = this.hit(event.offsetX, event.offsetY);
      this.choose(hit ? hit.index : null);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      const hit = this.hit(event.offsetX, event.offsetY);
      this.canvas.title = hit ? this.page.blockText(hit.index) : "";
    });
  }

  layouts() {
    const { head, layout } = this.page.data;
    if (!layout) return;
    const names = ["recorded", head.layout];
    const buttons = names.map((name) => {
      const button = make(
        "button",
        { type: "button", "aria-pressed": String(name === "recorded") },
        name,
      );
      button.addEventListener("click", () => {
        this.layout = name;
        buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        this.page.redraw();
      });
      return button;
    });
    find("layouts").replaceChildren(...buttons);
    find("layouts").hidden = false;
  }

  /** What is held and what is alive at the instant, where the layout has it. */
  look() {
    const { data, event, lives, held, heldThere } = this.page;
    const { slots, slot } = data.blocks;
    const isOther = this.layout !== "recorded";
    const there = isOther ? data.layout : data;
    const pieces = [];
    (isOther ? heldThere : held).alive(event, (i) => {
      const { offset, size, stream, pool, flags } = there.runs;
      pieces.push({
        offset: offset[i],
        size: size[i],
        stream: stream[i],
        pool: pool[i],
        flags: flags[i] & 1,
      });
    });
    pieces.sort((a, b) => a.offset - b.offset);
    const segments = [];
    for (const piece of pieces) {
      const last = segments.at(-1);
      const isSame = last && last.stream === piece.stream && last.pool === piece.pool;
      // Pages of an expandable segment that touch are one piece.
      if (isSame && last.flags && piece.flags && last.offset + last.size === piece.offset)
        last.size += piece.size;
      else segments.push({ ...piece });
    }
    const blocks = [];
    lives.alive(event, (index) => {
      const is = slot[index];
      const offset = isOther ? data.layout.offset[index] : slots.offset[is];
      if (offset >= 0) {
        blocks.push({
          index,
          offset,
          size: slots.granted[is],
          requested: slots.size[is],
          kind: slots.category[is],
        });
      }
    });
    blocks.sort((a, b) => a.offset - b.offset);
    return { segments: covering(segments, blocks), blocks };
  }

  draw() {
    const seen = this.look();
    this.seen = seen;
    const { segments, blocks } = seen;
    const bytes = segments.reduce((sum, segment) => sum + segment.size, 0);
    const width = this.canvas.parentElement.clientWidth;
    // A pixel between segments shows where one ends.
    const gap = segments.length > 400 ? 0 : 2;
    const perLine = Math.max(
      1,
      bytes / Math.min(LINES_MAX, Math.max(1, Math.ceil(segments.length / 3), 6)),
    );
    const scale = width / perLine;
    let x = 0;
    for (const segment of segments) {
      segment.x = x;
      x += segment.size * scale + gap;
    }
    const lines = Math.max(1, Math.ceil(x / width));
    this.canvas.style.height = `${lines * (LINE + 3)}px`;
    const { pen } = fitted(this.canvas);
    Object.assign(seen, { scale, width });
    for (const segment of segments) {
      pen.fillStyle = styles.color("idle");
      this.stroke(pen, segment.x, segment.size * scale, 1);
    }
    let at = 0;
    for (const block of blocks) {
      while (at + 1 < segments.length && segments[at + 1].offset <= block.offset) at++;
      if (!segments[at]) break;
      block.x = segments[at].x + (block.offset - segments[at].offset) * scale;
      block.wide = block.size * scale;
      pen.fillStyle = styles.color(`c${block.kind}`);
      // A hair between blocks, where there is room for it.
      this.stroke(pen, block.x, block.wide > 3 ? block.wide - 0.6 : block.wide, 1);
    }
    const chosen = blocks.find((block) => block.index === this.chosen);
    if (chosen) {
      pen.fillStyle = styles.color("ink");
      this.stroke(pen, chosen.x, Math.max(3, chosen.wide), 0.28);
    }
    this.say(bytes);
    this.describe();
  }

  /** Fills a stretch that may go on in the lines below. */
  stroke(pen, x, wide, share) {
    const { width } = this.seen;
    let line = Math.floor(x / width);
    let left = x - line * width;
    for (let rest = wide; rest > 0; line++, left = 0) {
      const part = Math.min(rest, width - left);
      pen.fillRect(left, line * (LINE + 3) + LINE * (1 - share), part, LINE * share);
      if (part <= 0) break;
      rest -= part;
    }
  }

  hit(x, y) {
    if (!this.seen || !this.seen.width) return null;
    const at = Math.floor(y / (LINE + 3)) * this.seen.width + x;
    return this.seen.blocks.find(
      (block) => block.x <= at && at < block.x + Math.max(1, block.wide),
    );
  }

  choose(index) {
    this.chosen = index;
    this.page.redraw();
  }

  say(held) {
    const { page, seen } = this;
    const { data } = page;
    const [requested, active, reserved] = page.sums.at(page.event).map(([, most]) => most);
    const shown = seen.blocks.reduce((sum, block) => sum + block.requested, 0);
    find("instant-about").textContent =
      `${page.when(page.event)}: ${bytesText(requested)} requested, ${bytesText(active)} active, ` +
      `${bytesText(reserved)} reserved.`;
    const of = [
      `${countText(seen.segments.length)} segments of ${bytesText(held)}, ` +
        `${countText(seen.blocks.length)} blocks of ${bytesText(shown)}, by address.`,
    ];
    const missing = requested - shown;
    if (this.layout === "recorded" && data.head.left_out > 0 && missing > 0) {
      of.push(`${bytesText(missing)} are in blocks that are left out of this page.`);
    }
    if (this.layout !== "recorded") {
      of.push(
        `As the allocator ${data.head.layout} would have placed them, each freed when that was asked for.`,
      );
      if (missing > 0)
        of.push(
          `${bytesText(missing)} have no place there: they are older than the recording, or left out.`,
        );
    }
    of.push("Click a block to see who asked for it.");
    find("places-about").textContent = of.join(" ");
  }

  /** The card of the chosen block. */
  describe() {
    const card = find("block");
    const { page } = this;
    const { data } = page;
    card.hidden = this.chosen === null;
    if (this.chosen === null) return;
    const { blocks, stacks } = data;
    const index = this.chosen;
    const is = blocks.slot[index];
    const { slots } = blocks;
    const row = (name, value) => [name, value];
    const rows = [
      row("address", page.address(slots.offset[is])),
      row("stream", data.head.streams[slots.stream[is]] ?? "?"),
      row("pool", data.head.pools[slots.pool[is]] ?? "?"),
      row(
        "born",
        index < blocks.older
          ? "before the recording began"
          : `with ${page.what(blocks.birth[index])}`,
      ),
      row(
        "freed",
        blocks.death[index] === NEVER
          ? "never in this recording"
          : `with ${page.what(blocks.death[index])}`,
      ),
    ];
    const freed = blocks.freed.get(index);
    if (freed !== undefined && freed < NEVER) {
      rows.push(
        row("let go of", `with ${page.what(freed)}, and held by a stream until it was freed`),
      );
    }
    const table = make("table");
    fillTable(table, ["", ""], rows);
    table.tHead.remove();
    const parts = [
      make(
        "h3",
        {},
        `${bytesText(slots.size[is])} (${countText(slots.size[is])} bytes), ` +
          `${data.head.categories[slots.category[is]]}`,
      ),
      table,
    ];
    const stack = slots.stack[is];
    if (stack > 0) {
      const frames = stacks.stacks[stack - 1].map((frame) => make("li", {}, stacks.frames[frame]));
      parts.push(make("ol", {}, ...frames));
    } else parts.push(make("p", { class: "quiet" }, "No call stack was recorded for it."));
    card.replaceChildren(...parts);
  }
}

/** Segments, with pieces added for blocks that lie in none: the recording may lack theirs. */
function covering(segments, blocks) {
  const all = [...segments];
  let at = 0;
  let last = null;
  for (const block of blocks) {
    while (at < segments.length && segments[at].offset + segments[at].size <= block.offset) at++;
    const segment = segments[at];
    if (segment && segment.offset <= block.offset) continue;
    if (last && last.offset + last.size === block.offset) last.size += block.size;
    else
      all.push((last = { offset: block.offset, size: block.size, stream: 0, pool: 0, flags: 0 }));
  }
  return all.length === segments.length ? all : all.sort((a, b) => a.offset - b.offset);
}
