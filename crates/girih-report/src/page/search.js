// Search: lines and frames, what blocks are for, addresses, events and steps.

const FOUND_MAX = 30;

class Search {
  constructor(page) {
    this.page = page;
    this.words = find("words");
    this.found = find("found");
    this.words.addEventListener("input", () => this.look());
    find("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.found.querySelector("button")?.click();
    });
    find("search").addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.close();
        this.words.blur();
      } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        const all = [this.words, ...this.found.querySelectorAll("button")];
        const next = all.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
        all[Math.max(0, Math.min(all.length - 1, next))].focus();
        event.preventDefault();
      }
    });
    document.addEventListener("pointerdown", (event) => {
      if (!find("search").contains(event.target)) this.found.hidden = true;
    });
  }

  close() {
    this.words.value = "";
    this.look();
  }

  look() {
    const query = this.words.value.trim().toLowerCase();
    this.page.highlighted =
      query.length > 1 && !/^(step|event)?\s*\d+$|^0x/.test(query) ? query : "";
    this.page.redraw();
    this.found.hidden = query === "";
    if (query === "") return;
    const answers = this.answers(query);
    const shown = answers.slice(0, FOUND_MAX).map(({ text, go }) => {
      const button = make("button", { type: "button" }, text);
      button.addEventListener("click", () => {
        this.found.hidden = true;
        go();
      });
      return button;
    });
    if (answers.length > FOUND_MAX)
      shown.push(
        make("p", { class: "quiet" }, `and ${countText(answers.length - FOUND_MAX)} more`),
      );
    if (shown.length === 0) shown.push(make("p", { class: "quiet" }, "Nothing has that in it."));
    this.found.replaceChildren(...shown);
  }

  answers(query) {
    const { page } = this;
    const { data } = page;
    const number = /^(step|event)?\s*(\d+)$/.exec(query);
    if (number) return this.moments(number[1], Number(number[2]));
    if (/^0x[0-9a-f]+$/.test(query)) return this.addresses(BigInt(query));
    const answers = [];
    for (const [line, group] of page.flame.lines) {
      if (!line.toLowerCase().includes(query)) continue;
      answers.push({
        text: `${line}: ${bytesText(group.bytes)} alive at this instant`,
        go: () => page.show(group.index),
      });
    }
    const { stacks } = data;
    const frames = new Set();
    stacks.frames.forEach((frame, i) => frame.toLowerCase().includes(query) && frames.add(i));
    const has = stacks.stacks.map((stack) => stack.some((frame) => frames.has(frame)));
    if (has.includes(true)) {
      // Of the blocks that such a stack asked for, the largest, whenever it was.
      const best = this.largest(
        (is) => data.blocks.slots.stack[is] > 0 && has[data.blocks.slots.stack[is] - 1],
      );
      if (best >= 0) {
        const size = bytesText(data.blocks.slots.size[data.blocks.slot[best]]);
        answers.push({
          text: `the largest block with it in its stack: ${size}`,
          go: () => page.show(best, true),
        });
      }
    }
    const kind = data.head.categories.findIndex((name) => name.startsWith(query));
    const best = kind < 0 ? -1 : this.largest((is) => data.blocks.slots.category[is] === kind);
    if (best >= 0) {
      const size = bytesText(data.blocks.slots.size[data.blocks.slot[best]]);
      answers.push({
        text: `the largest block of ${data.head.categories[kind]}: ${size}`,
        go: () => page.show(best, true),
      });
    }
    return answers;
  }

  largest(wants) {
    const { slot, slots } = this.page.data.blocks;
    const isWanted = Array.from({ length: slots.count }, (_, is) => wants(is));
    let best = -1;
    for (let i = 0; i < slot.length; i++) {
      if (isWanted[slot[i]] && (best < 0 || slots.size[slot[i]] > slots.size[slot[best]])) best = i;
    }
    return best;
  }

  moments(what, number) {
    const { page } = this;
    const { steps } = page.data.marks;
    const answers = [];
    if (what !== "event" && number < steps.length) {
      answers.push({
        text: `step ${number}, from event ${countText(steps[number])}`,
        go: () => page.goToStep(number),
      });
    }
    if (what !== "step" && number < page.data.series.events) {
      answers.push({ text: `event ${countText(number)}`, go: () => page.setEvent(number, true) });
    }
    return answers;
  }

  addresses(address) {
    const { page } = this;
    const { slots, slot } = page.data.blocks;
    const offset = page.offset(address);
    if (offset === null) return [];
    const answers = [];
    for (let i = 0; i < slot.length && answers.length < FOUND_MAX; i++) {
      const is = slot[i];
      if (slots.offset[is] <= offset && offset < slots.offset[is] + slots.granted[is]) {
        answers.push({ text: page.blockText(i), go: () => page.show(i, true) });
      }
    }
    return answers;
  }
}
