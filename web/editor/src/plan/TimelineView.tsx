/**
 * Draws two steady evaluations: a lane for each device and used link, predicted above measured
 * spans on one scale, and the critical chain. The wheel zooms, dragging pans, keys move between
 * spans.
 */
import { type PointerEvent, useEffect, useRef, useState } from "react";
import { usePage } from "../state/page";
import { Gaps, HALF, HEIGHT, LANE, Measured, Predicted, TOP } from "./Bars";
import { moved, revealing, stepped, type View, zoomed } from "./model/axis";
import { chainTo, criticalChain, operationIn } from "./model/critical";
import { gapsOf } from "./model/gaps";
import type { MeasuredBar } from "./model/measured";
import type { Plan, Span, Timeline } from "./model/plan";
import { timeText, wordsOf } from "./model/words";

const WIDTH = 1000;
/** The minimum width of a span, relative to the view. */
const MIN_SPAN_SHARE = 0.0015;
const ZOOM_FACTOR = 1.5;
/** Pixels of the wheel per zoom factor of e. */
const WHEEL = 400;

export function TimelineView({
  plan,
  timeline,
  measured,
}: {
  readonly plan: Plan;
  readonly timeline: Timeline;
  readonly measured: readonly MeasuredBar[];
}) {
  const [chosen, setChosen] = useState<number | null>(null);
  const [looked, setLooked] = useState<View | null>(null);
  const picture = useRef<SVGSVGElement>(null);
  const { spans, rows } = timeline;
  const whole = Math.max(timeline.seconds, ...measured.map((bar) => bar.start + bar.seconds));
  const view = looked ?? { from: 0, to: whole };
  const scale = WIDTH / (whole || 1);
  const height = LANE * rows.length;
  const chain = chosen === null ? criticalChain(timeline) : chainTo(spans, chosen);
  const elsewhere = usePage((page) => page.pointed?.operation);
  const shown = chosen === null ? computing(plan, spans, elsewhere) : spans[chosen];

  const choose = (at: number | null) => {
    setChosen(at);
    const span = at === null ? undefined : spans[at];
    const operation = span === undefined ? "" : operationIn(span);
    const node = plan.operations.get(operation)?.node ?? plan.sampler;
    usePage.setState({ pointed: span === undefined ? null : { operation, node } });
  };
  useEffect(() => () => usePage.setState({ pointed: null }), []);

  const zoom = (factor: number, at = middleOf(shown, view)) =>
    setLooked((now) => {
      const next = zoomed(now ?? { from: 0, to: whole }, factor, at, whole);
      return next.from <= 0 && next.to >= whole ? null : next;
    });
  const secondsAt = (x: number) => {
    const box = picture.current?.getBoundingClientRect();
    return view.from + ((x - (box?.left ?? 0)) / (box?.width || 1)) * (view.to - view.from);
  };
  useWheel(picture, (event) => {
    // without the focus, the wheel scrolls the panel
    if (!event.ctrlKey && !picture.current?.parentElement?.matches(":focus")) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / WHEEL), secondsAt(event.clientX));
  });
  const dragging = useDrag((pixels) => {
    const width = picture.current?.clientWidth || 1;
    const by = (-pixels / width) * (view.to - view.from);
    if (looked !== null) setLooked(moved(looked, by, whole));
  });

  const point = (target: EventTarget) => {
    const span = target instanceof SVGElement ? target.dataset.span : undefined;
    if (span !== undefined && Number(span) !== chosen) choose(Number(span));
  };
  const onKey = (key: string): boolean => {
    if (key === "+" || key === "=") zoom(ZOOM_FACTOR);
    else if (key === "-") zoom(1 / ZOOM_FACTOR);
    else if (key === ".") setLooked(null);
    else if (key === "Escape" && chosen !== null) choose(null);
    else {
      const next = stepped(spans, chosen, key);
      const span = next === null ? undefined : spans[next];
      if (span === undefined) return false;
      choose(next);
      if (looked !== null) setLooked(revealing(looked, span, whole));
    }
    return true;
  };

  return (
    <figure className="timeline">
      <div className="lanes">
        <ul>
          {rows.map((row) => (
            <li key={row}>{row.replace("->", "→")}</li>
          ))}
        </ul>
        <div
          className="axis"
          role="group"
          aria-label="spans: arrows select, Enter goes to the awaited span; +, −, . zoom"
          tabIndex={0}
          onPointerDown={(event) => {
            dragging.onPointerDown(event);
            point(event.target);
          }}
          onPointerMove={(event) => {
            dragging.onPointerMove(event);
            // a resting pointer does not select spans that move beneath it
            if (event.movementX !== 0 || event.movementY !== 0) point(event.target);
          }}
          onPointerUp={dragging.end}
          onPointerCancel={dragging.end}
          onPointerLeave={(event) => !event.currentTarget.matches(":focus") && choose(null)}
          onKeyDown={(event) => {
            if (event.ctrlKey || event.metaKey || event.altKey || !onKey(event.key)) return;
            event.preventDefault();
            event.stopPropagation();
          }}
        >
          <svg
            ref={picture}
            viewBox={`${view.from * scale} 0 ${(view.to - view.from) * scale} ${height}`}
            preserveAspectRatio="none"
            role="img"
            aria-label={`timeline of two evaluations, predicted${measured.length > 0 ? " and measured" : ""}`}
          >
            <Predicted
              plan={plan}
              timeline={timeline}
              scale={scale}
              least={MIN_SPAN_SHARE * (view.to - view.from) * scale}
              height={measured.length > 0 ? HALF : HEIGHT}
            />
            <Measured
              plan={plan}
              rows={rows}
              bars={measured}
              scale={scale}
              least={MIN_SPAN_SHARE * (view.to - view.from) * scale}
            />
            <Gaps gaps={gapsOf(plan, timeline)} timeline={timeline} scale={scale} />
            {timeline.boundaries.map((at) => (
              <line key={at} x1={at * scale} x2={at * scale} y1={0} y2={height} />
            ))}
            <polyline
              className="chain"
              points={chain.flatMap((at) => cornersOf(spans[at], scale)).join(" ")}
            />
            {shown !== undefined && (
              <rect
                className="framed"
                x={shown.start * scale}
                y={LANE * shown.row + TOP / 2}
                width={Math.max(MIN_SPAN_SHARE * (view.to - view.from), shown.seconds) * scale}
                height={(measured.length > 0 ? HALF : HEIGHT) + TOP}
              />
            )}
          </svg>
        </div>
      </div>
      <div className="zooming">
        <button type="button" aria-label="zoom out" onClick={() => zoom(1 / ZOOM_FACTOR)}>
          −
        </button>
        <button type="button" aria-label="zoom in" onClick={() => zoom(ZOOM_FACTOR)}>
          +
        </button>
        <button type="button" disabled={looked === null} onClick={() => setLooked(null)}>
          whole
        </button>
        <small>
          {timeText(view.from)} to {timeText(view.to)}
        </small>
      </div>
      <figcaption aria-live="polite">
        {shown === undefined
          ? `evaluations ${timeline.first} and ${timeline.first + 1}: ${timeText(timeline.seconds)}, predicted${measured.length > 0 ? " above, measured below" : ""}; the line is the critical path`
          : wordsOf(shown, timeline)}
      </figcaption>
    </figure>
  );
}

/** Returns the span that computes the operation highlighted in the opened step. */
function computing(plan: Plan, spans: readonly Span[], operation: string | undefined) {
  if (operation === undefined) return undefined;
  const calls = plan.variants.flatMap(({ segments }) => segments.flatMap(({ calls }) => calls));
  const call = calls.find(({ operations }) => operations.includes(operation));
  return spans.find(
    (span) => span.stage !== "" && call?.operations.includes(operationIn(span)) === true,
  );
}

/** Returns the points at which the chain's line enters and leaves a span. */
function cornersOf(span: Span | undefined, scale: number): string[] {
  if (span === undefined) return [];
  const y = LANE * span.row + TOP + HALF / 2;
  return [`${span.start * scale},${y}`, `${(span.start + span.seconds) * scale},${y}`];
}

function middleOf(span: Span | undefined, { from, to }: View): number {
  const at = span === undefined ? (from + to) / 2 : span.start + span.seconds / 2;
  return Math.max(from, Math.min(to, at));
}

/** Adds a wheel listener that can prevent scrolling, unlike React's passive one. */
function useWheel(on: React.RefObject<Element | null>, act: (event: WheelEvent) => void): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const element = on.current;
    const listener = (event: Event) => latest.current(event as WheelEvent);
    element?.addEventListener("wheel", listener, { passive: false });
    return () => element?.removeEventListener("wheel", listener);
  }, [on]);
}

/** Reports each movement of a drag in pixels. */
function useDrag(act: (pixels: number) => void) {
  const last = useRef<number | null>(null);
  return {
    onPointerDown: (event: PointerEvent) => {
      if (event.button !== 0) return;
      last.current = event.clientX;
      event.currentTarget.setPointerCapture(event.pointerId);
    },
    onPointerMove: (event: PointerEvent) => {
      if (last.current === null) return;
      act(event.clientX - last.current);
      last.current = event.clientX;
    },
    end: () => {
      last.current = null;
    },
  };
}
