// Queries: what is alive at an instant, and the least and the most of a stretch of events. Both are
// answered by pyramids, so that ten million events cost no more than the pixels that show them.

/** The first index at which a rising array is above a value. */
function above(array, value, from = 0, to = array.length) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (array[middle] <= value) from = middle + 1;
    else to = middle;
  }
  return from;
}

/**
 * Lives in order of birth. Over them stands a pyramid of the latest death among sixteen below, so
 * that whole stretches of lives that are over are passed by.
 */
class Lives {
  constructor(birth, death) {
    this.birth = birth;
    this.levels = [death];
    while (this.levels.at(-1).length > 16) {
      const below = this.levels.at(-1);
      const level = new Uint32Array(Math.ceil(below.length / 16));
      for (let i = 0; i < below.length; i++) {
        if (below[i] > level[i >> 4]) level[i >> 4] = below[i];
      }
      this.levels.push(level);
    }
  }

  /** Calls `visit` with each that is alive after an event, in order of birth. */
  alive(event, visit) {
    const end = above(this.birth, event);
    const { levels } = this;
    const down = (level, from) => {
      const array = levels[level];
      const to = Math.min(from + 16, array.length);
      for (let i = from; i < to && i * 16 ** level < end; i++) {
        if (array[i] <= event) continue;
        if (level > 0) down(level - 1, i * 16);
        else visit(i);
      }
    };
    down(levels.length - 1, 0);
  }

  /** Calls `visit` with each that is alive after some event of `from` to `to`. */
  during(from, to, visit) {
    this.alive(from, visit);
    const end = above(this.birth, to);
    for (let i = above(this.birth, from); i < end; i++) visit(i);
  }
}

/** The least and the most of stretches of buckets. */
class Pyramid {
  constructor(low, high) {
    this.levels = [{ low, high }];
    while (this.levels.at(-1).low.length > 8) {
      const below = this.levels.at(-1);
      const count = Math.ceil(below.low.length / 4);
      const level = { low: new Float64Array(count).fill(Infinity), high: new Float64Array(count) };
      for (let i = 0; i < below.low.length; i++) {
        level.low[i >> 2] = Math.min(level.low[i >> 2], below.low[i]);
        level.high[i >> 2] = Math.max(level.high[i >> 2], below.high[i]);
      }
      this.levels.push(level);
    }
  }

  /** Of buckets `from` up to but not `to`. */
  range(from, to) {
    let [low, high] = [Infinity, -Infinity];
    for (let level = 0; from < to; level++) {
      const array = this.levels[level];
      const isLast = level + 1 === this.levels.length;
      while (from < to && (isLast || from % 4 !== 0)) {
        low = Math.min(low, array.low[from]);
        high = Math.max(high, array.high[from++]);
      }
      while (from < to && to % 4 !== 0) {
        low = Math.min(low, array.low[--to]);
        high = Math.max(high, array.high[to]);
      }
      from >>= 2;
      to >>= 2;
    }
    return [low, high];
  }
}

/** Bytes over time: from the buckets, and within them from the blocks, if none is left out. */
class Sums {
  constructor(data, lives, held) {
    this.series = data.series;
    this.data = data;
    this.lives = lives;
    this.held = held;
    this.names = ["requested", "active", "reserved"];
    this.pyramids = this.names.map(
      (name) => new Pyramid(data.series[name].low, data.series[name].high),
    );
    // The most that was active so far: no allocator can have done with less by then.
    const active = data.series.active.high;
    const bound = new Float64Array(active.length);
    let most = 0;
    for (let i = 0; i < active.length; i++) bound[i] = most = Math.max(most, active[i]);
    this.bound = bound;
    this.isExact = data.head.left_out === 0 || data.series.width === 1;
    this.stretch = null;
  }

  /** The least and the most of a curve over events `from` up to but not `to`. */
  range(name, from, to) {
    const { width, count } = this.series;
    const stretch = this.stretch;
    if (stretch && stretch.from <= from && to <= stretch.to) {
      return stretch[name].range(from - stretch.from, to - stretch.from);
    }
    const first = Math.floor(from / width);
    const last = Math.min(count, Math.max(first + 1, Math.ceil(to / width)));
    return this.pyramids[this.names.indexOf(name)].range(first, last);
  }

  /** Adds up the blocks of events `from` up to `to` one by one, if they are few and all there. */
  refine(from, to) {
    const { width, events } = this.series;
    from = Math.max(0, Math.floor(from));
    to = Math.min(events, Math.ceil(to));
    if (width === 1 || !this.isExact || to - from > 60000) return;
    const has = this.stretch;
    if (has && has.from <= from && to <= has.to) return;
    [from, to] = [Math.max(0, from - (to - from)), Math.min(events, to + (to - from))];
    const count = to - from;
    const requested = new Float64Array(count);
    const active = new Float64Array(count);
    const reserved = new Float64Array(count);
    const { slots, slot, birth, death } = this.data.blocks;
    this.lives.during(from, to - 1, (i) => {
      const begin = Math.max(0, birth[i] - from);
      const is = slot[i];
      requested[begin] += slots.size[is];
      active[begin] += slots.granted[is];
      if (death[i] < to) {
        requested[death[i] - from] -= slots.size[is];
        active[death[i] - from] -= slots.granted[is];
      }
    });
    const { runs } = this.data;
    this.held.during(from, to - 1, (i) => {
      reserved[Math.max(0, runs.birth[i] - from)] += runs.size[i];
      if (runs.death[i] < to) reserved[runs.death[i] - from] -= runs.size[i];
    });
    for (let i = 1; i < count; i++) {
      requested[i] += requested[i - 1];
      active[i] += active[i - 1];
      reserved[i] += reserved[i - 1];
    }
    for (let i = 0; i < count; i++) reserved[i] = Math.max(reserved[i], active[i]);
    this.stretch = {
      from,
      to,
      requested: new Pyramid(requested, requested),
      active: new Pyramid(active, active),
      reserved: new Pyramid(reserved, reserved),
    };
  }

  /** What was requested, active and reserved after an event: [least, most] of each. */
  at(event) {
    this.refine(event, event + 1);
    return this.names.map((name) => this.range(name, event, event + 1));
  }

  /** Microseconds from the first event to an event, as near as the buckets tell. */
  time(event) {
    const { width, times, count } = this.series;
    const bucket = Math.min(count - 1, Math.floor(event / width));
    const next = Math.min(count - 1, bucket + 1);
    const share = (event - bucket * width) / width;
    return times[bucket] + (times[next] - times[bucket]) * share;
  }
}
