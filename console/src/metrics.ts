/** The node's numbers: Prometheus text into sums, rates and percentiles. */

export interface Sample {
  /** When it was read, in seconds. */
  at: number;
  /** Sums over all labels. */
  sums: Map<string, number>;
  /** Cumulative buckets of histograms: family → upper bound → count. */
  buckets: Map<string, Map<number, number>>;
}

const LINE = /^([A-Za-z_:][\w:]*)(\{[^}]*\})? (\S+)$/;
const BOUND = /le="([^"]+)"/;

export function readMetrics(text: string, at: number): Sample {
  const sums = new Map<string, number>();
  const buckets = new Map<string, Map<number, number>>();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (!found) continue;
    const [, name = "", labels = "", value = "0"] = found;
    const bound = name.endsWith("_bucket") ? BOUND.exec(labels) : null;
    if (bound?.[1]) {
      const family = name.slice(0, -"_bucket".length);
      const held = buckets.get(family) ?? new Map<number, number>();
      const upper = bound[1] === "+Inf" ? Infinity : Number(bound[1]);
      held.set(upper, (held.get(upper) ?? 0) + Number(value));
      buckets.set(family, held);
    } else {
      sums.set(name, (sums.get(name) ?? 0) + Number(value));
    }
  }
  return { at, sums, buckets };
}

/** How much a counter grew per second; null where it began anew. */
export function growth(name: string, before: Sample, now: Sample): number | null {
  const seconds = now.at - before.at;
  const grown = (now.sums.get(name) ?? 0) - (before.sums.get(name) ?? 0);
  return seconds > 0 && grown >= 0 ? grown / seconds : null;
}

/** A percentile of what a histogram saw between two samples; null where it saw nothing. */
export function percentile(family: string, share: number, before: Sample, now: Sample): number | null {
  const ends = now.buckets.get(family);
  const starts = before.buckets.get(family);
  if (!ends) return null;
  const bounds = [...ends.keys()].sort((a, b) => a - b);
  const seen = (bound: number) => (ends.get(bound) ?? 0) - (starts?.get(bound) ?? 0);
  const all = seen(Infinity);
  if (!(all > 0)) return null;
  let lower = 0;
  let below = 0;
  for (const bound of bounds) {
    const upTo = seen(bound);
    if (upTo >= share * all) {
      if (bound === Infinity) return lower;
      return lower + ((bound - lower) * (share * all - below)) / Math.max(1, upTo - below);
    }
    lower = bound;
    below = upTo;
  }
  return null;
}
