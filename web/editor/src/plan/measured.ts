/** Sets what was measured beside what was predicted. Pure. */
import type { MeasuredSpan } from "../jobs/job";
import type { Plan } from "./plan";

export interface Compared {
  readonly segment: string;
  readonly device: number;
  readonly predicted: number;
  /** The middle one of all evaluations; null before the first. */
  readonly measured: number | null;
  /** Whether they are more than a quarter apart. */
  readonly far: boolean;
}

const FAR = 0.25;

/** Each segment of all variants, predicted and measured. */
export function compared(plan: Plan, spans: readonly MeasuredSpan[]): readonly Compared[] {
  const bySegment = new Map<string, number[]>();
  for (const { kind, target, seconds } of spans)
    if (kind === "segment") bySegment.set(target, [...(bySegment.get(target) ?? []), seconds]);
  return plan.variants.flatMap(({ segments }) =>
    segments.map(({ name, device, calls }) => {
      const predicted = calls.reduce((sum, { seconds }) => sum + seconds, 0);
      const all = (bySegment.get(name) ?? []).sort((one, other) => one - other);
      const measured = all[Math.floor(all.length / 2)] ?? null;
      const far = measured !== null && Math.abs(measured - predicted) > FAR * predicted;
      return { segment: name, device, predicted, measured, far };
    }),
  );
}

export interface MeasuredBar {
  readonly row: string;
  readonly target: string;
  readonly evaluation: number;
  /** From the begin of the first evaluation that is shown. */
  readonly start: number;
  readonly seconds: number;
}

/**
 * Two evaluations as they were measured, in rows that are named as those of the plan: `first` and
 * the next one, or the last two that are whole where sampling has not come so far.
 */
export function bars(spans: readonly MeasuredSpan[], first: number): readonly MeasuredBar[] {
  const inLoop = spans.filter(({ evaluation }) => evaluation !== null);
  const last = Math.max(-1, ...inLoop.map(({ evaluation }) => evaluation ?? -1));
  const from = Math.min(first, last - 2); // the last one may still go on
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
