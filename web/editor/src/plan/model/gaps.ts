/** Finds the gaps in which devices are idle in a timeline, and their causes. Pure. */
import type { Plan, Timeline } from "./plan";
import { namedIn, timeText } from "./words";

export interface Gap {
  readonly row: number;
  readonly start: number;
  readonly seconds: number;
  /** The index of the span that ends the gap; null at the end of the timeline. */
  readonly before: number | null;
  /** The index of the span that it waited for. */
  readonly waitsFor: number | null;
}

/** The minimum length of a gap, relative to the timeline. */
const MIN_GAP_SHARE = 1e-3;

/** Returns the gaps of devices, longest first. Links are omitted, because they are mostly idle. */
export function gapsOf({ devices }: Plan, { rows, spans, seconds }: Timeline): readonly Gap[] {
  const found = rows.flatMap((name, row) => {
    if (!devices.includes(name)) return [];
    const lane = spans
      .flatMap((span, at) => (span.row === row ? [{ ...span, at }] : []))
      .sort((one, other) => one.start - other.start);
    const gaps: Gap[] = [];
    let end = 0;
    for (const { start, seconds: long, at, after } of lane) {
      gaps.push({ row, start: end, seconds: start - end, before: at, waitsFor: after });
      end = Math.max(end, start + long);
    }
    return [...gaps, { row, start: end, seconds: seconds - end, before: null, waitsFor: null }];
  });
  return found
    .filter((gap) => gap.seconds > MIN_GAP_SHARE * seconds)
    .sort((one, other) => other.seconds - one.seconds);
}

export function gapWords({ row, seconds, before, waitsFor }: Gap, timeline: Timeline): string {
  const [next, cause] = [before, waitsFor].map((at) =>
    at === null ? undefined : timeline.spans[at],
  );
  const until = next === undefined ? "to the end" : `before ${namedIn(next, timeline)}`;
  const waits = cause === undefined ? "" : `, waits for ${namedIn(cause, timeline)}`;
  return `${timeline.rows[row]} idle ${timeText(seconds)} ${until}${waits}`;
}
