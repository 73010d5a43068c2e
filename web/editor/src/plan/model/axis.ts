/** Computes the visible part of a timeline, and the span that a key selects. Pure. */
import type { Span } from "./plan";

/** The visible range in seconds; a timeline starts at 0. */
export interface View {
  readonly from: number;
  readonly to: number;
}

const MAX_ZOOM = 400;
/** The margin around a span scrolled into view, relative to the view. */
const MARGIN = 0.1;

/** Zooms around the time `at`, which stays in place. */
export function zoomed({ from, to }: View, factor: number, at: number, whole: number): View {
  const length = Math.min(whole, Math.max(whole / MAX_ZOOM, (to - from) / factor));
  const before = (at - from) / (to - from || 1);
  return within(at - before * length, length, whole);
}

export function moved({ from, to }: View, by: number, whole: number): View {
  return within(from + by, to - from, whole);
}

/**
 * Moves the view as little as possible to show a span, or its start if it is longer than the view.
 */
export function revealing(view: View, { start, seconds }: Span, whole: number): View {
  const length = view.to - view.from;
  const margin = MARGIN * length;
  const end = start + seconds + margin;
  const late = end > view.to ? end - view.to : 0;
  return moved(view, start - margin < view.from + late ? start - margin - view.from : late, whole);
}

function within(from: number, length: number, whole: number): View {
  const start = Math.max(0, Math.min(whole - length, from));
  return { from: start, to: start + length };
}

/**
 * Returns the span that a key selects: along its lane, in the next lane, or the one that it waited
 * for.
 */
export function stepped(
  spans: readonly Span[],
  present: number | null,
  key: string,
): number | null {
  const now = present === null ? undefined : spans[present];
  if (now === undefined || present === null) return spans.length > 0 ? 0 : null;
  const lane = spans
    .flatMap(({ row }, at) => (row === now.row ? [at] : []))
    .sort((one, other) => (spans[one]?.start ?? 0) - (spans[other]?.start ?? 0));
  const place = lane.indexOf(present);
  switch (key) {
    case "ArrowLeft":
      return lane[place - 1] ?? present;
    case "ArrowRight":
      return lane[place + 1] ?? present;
    case "Home":
      return lane[0] ?? present;
    case "End":
      return lane.at(-1) ?? present;
    case "ArrowUp":
      return nearest(spans, now, -1) ?? present;
    case "ArrowDown":
      return nearest(spans, now, 1) ?? present;
    case "Enter":
      return now.after ?? present;
    default:
      return null;
  }
}

/** Returns the span nearest in time in the next lane with spans. */
function nearest(spans: readonly Span[], now: Span, way: 1 | -1): number | undefined {
  const rows = spans.map(({ row }) => way * (row - now.row)).filter((by) => by > 0);
  const next = now.row + way * Math.min(...rows);
  const middle = ({ start, seconds }: Span) => start + seconds / 2;
  const gap = (at: number) => Math.abs(middle(spans[at] ?? now) - middle(now));
  return spans
    .flatMap(({ row }, at) => (row === next ? [at] : []))
    .sort((one, other) => gap(one) - gap(other))[0];
}
