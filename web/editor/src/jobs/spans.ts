/** Appends measured spans to a job. */
import { numberFrom, textOf } from "../json";
import type { Span, Timeline } from "../server/generated/messages";
import { type MessageFields, readMessages } from "../server/messageFields";
import type { Job, MeasuredSpan } from "./job";
import { numberOrNull, shownAs } from "./parts";

const MAX_SPANS = 4_000;

export function withSpans(spans: Job["spans"], event: MessageFields<Timeline>): Job["spans"] {
  const node = shownAs(event.node);
  const more = readMessages<Span, MeasuredSpan>(event.segments, (span) => ({
    device: textOf(span.device),
    kind: textOf(span.kind),
    target: textOf(span.target),
    peer: textOf(span.peer),
    start: numberFrom(span.start),
    seconds: numberFrom(span.seconds),
    evaluation: numberOrNull(span.evaluation),
  }));
  return { ...spans, [node]: [...(spans[node] ?? []), ...more].slice(-MAX_SPANS) };
}
