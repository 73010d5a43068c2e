/** Compares measured with predicted times. Pure. */
import type { MeasuredSpan } from "../../jobs/job";
import type { Plan } from "./plan";

export interface Compared {
  readonly segment: string;
  readonly device: number;
  readonly predicted: number;
  /** The median of all evaluations; null before the first. */
  readonly measured: number | null;
  /** Whether the measured time differs by more than a quarter. */
  readonly far: boolean;
}

const MAX_DEVIATION = 0.25;

/** Returns the predicted and measured time of each segment of all variants. */
export function compared(plan: Plan, spans: readonly MeasuredSpan[]): readonly Compared[] {
  const bySegment = new Map<string, number[]>();
  for (const { kind, target, seconds } of spans)
    if (kind === "segment") bySegment.set(target, [...(bySegment.get(target) ?? []), seconds]);
  return plan.variants.flatMap(({ segments }) =>
    segments.map(({ name, device, calls }) => {
      const predicted = calls.reduce((sum, { seconds }) => sum + seconds, 0);
      const all = (bySegment.get(name) ?? []).sort((one, other) => one - other);
      const measured = all[Math.floor(all.length / 2)] ?? null;
      const far = measured !== null && Math.abs(measured - predicted) > MAX_DEVIATION * predicted;
      return { segment: name, device, predicted, measured, far };
    }),
  );
}

export interface MeasuredBar {
  readonly row: string;
  readonly target: string;
  readonly evaluation: number;
  /** Seconds from the start of the first shown evaluation. */
  readonly start: number;
  readonly seconds: number;
}

/**
 * Returns the measured spans of two evaluations, with the plan's names for rows: `first` and the
 * next one, or the last two complete ones if sampling is not that far.
 */
export function bars(spans: readonly MeasuredSpan[], first: number): readonly MeasuredBar[] {
  const inLoop = spans.filter(({ evaluation }) => evaluation !== null);
  const last = Math.max(-1, ...inLoop.map(({ evaluation }) => evaluation ?? -1));
  const from = Math.min(first, last - 2); // the last one may be incomplete
  const shown = inLoop.filter(({ evaluation }) => evaluation === from || evaluation === from + 1);
  const begin = Math.min(...shown.map(({ start }) => start));
  return shown.map(({ device, peer, target, kind, start, seconds, evaluation }) => ({
    row: kind === "send" ? `${device} -> ${peer}` : device,
    target: kind === "segment" ? target : `${kind} ${target}`,
    evaluation: evaluation ?? 0,
    start: start - begin,
    seconds,
  }));
}
