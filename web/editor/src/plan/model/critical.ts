/**
 * Follows dependencies between spans: the critical chain that determines an evaluation's time.
 * Pure.
 */
import type { Plan, Span, Timeline } from "./plan";

/** Returns a span and the chain of spans that it waited for, earliest first. */
export function chainTo(spans: readonly Span[], last: number): readonly number[] {
  const chain = [last];
  for (let before = spans[last]?.after; before != null && before < (chain[0] ?? 0);) {
    chain.unshift(before);
    before = spans[before]?.after;
  }
  return chain;
}

/** Returns the chain of the span that ends last; empty without spans. */
export function criticalChain({ spans }: Timeline): readonly number[] {
  const end = (at: number) => (spans[at]?.start ?? 0) + (spans[at]?.seconds ?? 0);
  const last = spans.reduce((best, _, at) => (end(at) > end(best) ? at : best), 0);
  return spans.length === 0 ? [] : chainTo(spans, last);
}

/** Returns the operation that a span computes or sends: `5.mid` for `5.mid ×2`. */
export function operationIn({ what }: Span): string {
  return what.replace(/ ×\d+$/, "");
}

export interface Critical {
  readonly operations: ReadonlySet<string>;
  readonly goesOver: (from: string, to: string) => boolean;
}

/**
 * Returns the part of a variant's evaluation on the critical chain: all operations of its calls.
 */
export function criticalOf(plan: Plan, variant: number): Critical {
  const { timeline, variants } = plan;
  const chosen = variants[variant];
  const spans = (timeline === null ? [] : criticalChain(timeline)).flatMap((at) => {
    const span = timeline?.spans[at];
    return span && span.evaluation !== null && chosen?.evaluations.includes(span.evaluation)
      ? [span]
      : [];
  });
  const calls = chosen?.segments.flatMap((segment) => segment.calls) ?? [];
  const steps = spans
    .filter(({ stage }) => stage !== "")
    .map((span) => {
      const id = operationIn(span);
      return new Set(calls.find(({ operations }) => operations.includes(id))?.operations ?? [id]);
    });
  return {
    operations: new Set(steps.flatMap((ids) => [...ids])),
    goesOver: (from, to) =>
      steps.some((ids, at) => ids.has(to) && steps[at - 1]?.has(from) === true),
  };
}
