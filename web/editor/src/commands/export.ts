/** Saves images of the graph in view and of its timelines, and traces of its job. */
import { graphDrawing } from "../export/graphDrawing";
import type { Drawing, Paint } from "../export/svg";
import { timelineDrawing } from "../export/timelineDrawing";
import { traceOf } from "../export/trace";
import { printJson } from "../json";
import { bars } from "../plan/model/measured";
import { activeSession, docOf, graphOf } from "../state/documents";
import { followedBy, notify, useLive } from "../state/live";
import { plansOf } from "../state/planning";
import { saveFile } from "./files";

export type PictureKind = "svg" | "png";

/** Pixels of a PNG per unit of the drawing, and the maximum width and height in pixels. */
const SCALE = 2;
const MAX_PIXELS = 12_000;

export function saveGraph(kind: PictureKind): void {
  const session = activeSession();
  if (session === null) return;
  const { catalog } = useLive.getState();
  withPaint((paint) =>
    save(session.name, kind, graphDrawing(docOf(session), graphOf(session), catalog, paint)),
  );
}

export function saveTimeline(kind: PictureKind): void {
  const session = activeSession();
  if (session === null) return;
  const { shown: job } = followedBy(session);
  const drawn = plansOf(session.planned, job)
    .filter(({ timeline }) => timeline !== null)
    .map((plan) => ({
      plan,
      measured: bars(job?.spans[plan.sampler] ?? [], plan.timeline?.first ?? 0),
    }));
  if (drawn.length === 0) return notify("no timeline: no sampler of this graph is planned");
  withPaint((paint) => save(`${session.name} timeline`, kind, timelineDrawing(drawn, paint)));
}

export function saveTrace(): void {
  const session = activeSession();
  const { shown: job } = followedBy(session);
  if (session === null || !job || Object.keys(job.spans).length === 0)
    return notify("nothing was measured: run the workflow, then save its trace");
  const content = new Blob([printJson(traceOf(job))], { type: "application/json" });
  saveFile(`${session.name} trace.json`, content);
}

/** Calls `act` with a function that returns the page's current colours. */
function withPaint(act: (paint: Paint) => void): void {
  const probe = document.body.appendChild(document.createElement("i"));
  const known = new Map<string, string>();
  act((variable, classes = "") => {
    const key = `${variable} ${classes}`;
    const found = known.get(key);
    if (found !== undefined) return found;
    probe.className = classes;
    probe.style.color = `var(--${variable})`;
    const colour = getComputedStyle(probe).color;
    known.set(key, colour);
    return colour;
  });
  probe.remove();
}

function save(name: string, kind: PictureKind, drawing: Drawing): void {
  const svg = new Blob([drawing.svg], { type: "image/svg+xml" });
  if (kind === "svg") return saveFile(`${name}.svg`, svg);
  rasterized(svg, drawing).then((png) => saveFile(`${name}.png`, png), notify);
}

async function rasterized(svg: Blob, { width, height }: Drawing): Promise<Blob> {
  const scale = Math.min(SCALE, MAX_PIXELS / width, MAX_PIXELS / height);
  const picture = new Image();
  picture.src = URL.createObjectURL(svg);
  try {
    await picture.decode();
    const canvas = new OffscreenCanvas(Math.ceil(width * scale), Math.ceil(height * scale));
    canvas.getContext("2d")?.drawImage(picture, 0, 0, canvas.width, canvas.height);
    return await canvas.convertToBlob({ type: "image/png" });
  } finally {
    URL.revokeObjectURL(picture.src);
  }
}
