/**
 * Draws timelines as SVG: a lane for each device and link, predicted above measured spans. Pure.
 */
import type { MeasuredBar } from "../plan/model/measured";
import type { Plan } from "../plan/model/plan";
import { deviceLook, timeText } from "../plan/model/words";
import { drawing, type Drawing, element, escaped, line, type Paint } from "./svg";

export interface Drawable {
  readonly plan: Plan;
  readonly measured: readonly MeasuredBar[];
}

const LEFT = 130;
const WIDTH = 1_000;
const HEAD = 46;
const LANE = 40;
const BAR = 16;
const MARGIN = 20;
const MIN_BAR_WIDTH = 0.5;

/** Draws the timelines one below the other and omits plans that were not simulated. */
export function timelineDrawing(all: readonly Drawable[], paint: Paint): Drawing {
  let top = MARGIN;
  const parts = all.flatMap((one) => {
    const rows = one.plan.timeline?.rows.length;
    if (rows === undefined) return [];
    const part = element("g", { transform: `translate(0 ${top})` }, section(one, paint));
    top += HEAD + LANE * rows + MARGIN;
    return [part];
  });
  return drawing([0, 0, LEFT + WIDTH + 2 * MARGIN, top], paint("back"), ...parts);
}

function section({ plan, measured }: Drawable, paint: Paint): string {
  const { timeline } = plan;
  if (timeline === null) return "";
  const { rows, spans, boundaries, first } = timeline;
  const whole = Math.max(timeline.seconds, ...measured.map((bar) => bar.start + bar.seconds));
  const at = (seconds: number) => LEFT + (WIDTH * seconds) / (whole || 1);
  const fill = (row: string) => {
    const device = plan.devices.indexOf(row);
    return paint("device", device < 0 ? "span link-span" : deviceLook(device));
  };
  const bar = (row: string, from: number, to: number, y: number, title: string) =>
    element(
      "rect",
      {
        x: at(from),
        y,
        width: Math.max(MIN_BAR_WIDTH, at(to) - at(from)),
        height: BAR,
        fill: fill(row),
      },
      element("title", {}, escaped(title)),
    );
  const words = `sampler ${plan.sampler}, evaluations ${first} and ${first + 1}: ${timeText(whole)}; predicted above${measured.length > 0 ? ", measured below" : ""}`;
  return [
    line(words, LEFT + WIDTH, { x: MARGIN, y: 18, fill: paint("text") }, 13),
    ...[0, 0.25, 0.5, 0.75, 1].map((part) =>
      line(
        timeText(part * whole),
        100,
        { x: at(part * whole), y: 38, "text-anchor": "middle", fill: paint("dim") },
        10,
      ),
    ),
    ...rows.flatMap((row, place) => {
      const y = HEAD + LANE * place;
      const field = { x: LEFT, y, width: WIDTH, height: LANE - 4, fill: paint("field") };
      const label = { x: MARGIN, y: y + LANE / 2, fill: paint("text") };
      return [element("rect", field), line(row.replace("->", "→"), LEFT - MARGIN, label)];
    }),
    ...spans.map(({ row, what, start, seconds }) =>
      bar(
        rows[row] ?? "",
        Math.max(0, start),
        Math.min(timeline.seconds, start + seconds),
        HEAD + LANE * row + 1,
        `${what}, predicted: ${timeText(seconds)}`,
      ),
    ),
    ...measured.flatMap(({ row, target, start, seconds }) =>
      rows.includes(row)
        ? [
            bar(
              row,
              start,
              start + seconds,
              HEAD + LANE * rows.indexOf(row) + 2 + BAR,
              `${target}, measured: ${timeText(seconds)}`,
            ),
          ]
        : [],
    ),
    ...boundaries.map((moment) =>
      element("line", {
        x1: at(moment),
        x2: at(moment),
        y1: HEAD,
        y2: HEAD + LANE * rows.length - 4,
        stroke: paint("dim"),
        "stroke-dasharray": "6 5",
      }),
    ),
  ].join("");
}
