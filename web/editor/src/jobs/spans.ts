/** Adds what was measured to a job's spans. */
import type { Job, MeasuredSpan } from "./job";
import { type Fields, fields, number, numberOrNull, shownAs, text } from "./parts";

const MOST_SPANS = 4_000;

export function withSpans(spans: Job["spans"], event: Fields): Job["spans"] {
  const node = shownAs(event.node);
  const more = ((event.segments ?? []) as readonly unknown[])
    .map(fields)
    .map((span): MeasuredSpan => ({
      device: text(span.device),
      kind: text(span.kind),
      target: text(span.target),
      peer: text(span.peer),
      start: number(span.start),
      seconds: number(span.seconds),
      evaluation: numberOrNull(span.evaluation),
    }));
  return { ...spans, [node]: [...(spans[node] ?? []), ...more].slice(-MOST_SPANS) };
}
