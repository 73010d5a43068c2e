/**
 * Updates jobs from the frames of the native channel. A snapshot replaces all jobs except those not
 * yet queued; events change single jobs. Pure; images are bytes.
 */
import { fieldsOf, listOf, numberFrom, textOf, textsOf } from "../json";
import type {
  EventFrame,
  JobData,
  JobError,
  JobReport,
  Messages,
  NodeProgress,
  NodeReport,
  PreviewData,
  QueueData,
  QueueFrame,
  RunningData,
  SnapshotFrame,
  Timeline,
} from "../server/generated/messages";
import { type MessageFields, messageFields, readMessages } from "../server/messageFields";
import {
  type Job,
  type JobStatus,
  type Jobs,
  type NodePhase,
  type NodeRun,
  type Picture,
  type Queue,
} from "./job";
import { byShown, numberOrNull, shownAs } from "./parts";
import { withSpans } from "./spans";

type JobEvent = Messages["JobEvent"];
type Ended = Extract<JobEvent, { readonly kind: "ended" }>;

/** The maximum number of ended jobs that no document shows. */
const MAX_ENDED_JOBS = 8;

export function reduce(jobs: Jobs, frame: unknown): Jobs {
  const message = messageFields<SnapshotFrame | QueueFrame | EventFrame>(frame);
  switch (message.type as Messages["ServerFrame"]["type"]) {
    case "snapshot": {
      const found = readMessages(message.jobs, jobOf);
      const underway = Object.values(jobs.byId).filter(
        ({ id, status }) => status === "pending" && !(id in jobs.queue.places),
      );
      return {
        byId: Object.fromEntries([...underway, ...found].map((job) => [job.id, job])),
        queue: queueOf(messageFields<QueueData>(message.queue)),
      };
    }
    case "queue":
      return waiting({ ...jobs, queue: queueOf(message) });
    case "event":
      return heard(jobs, messageFields<JobEvent>(message.event));
    default:
      return jobs;
  }
}

/** Removes the oldest ended jobs beyond `MAX_ENDED_JOBS`, except those that a document shows. */
export function trimmed(jobs: Jobs, shown: ReadonlySet<string>): Jobs {
  const over = Object.values(jobs.byId)
    .filter(({ id, ended: at }) => at !== null && !shown.has(id))
    .sort((one, other) => (other.ended ?? 0) - (one.ended ?? 0))
    .slice(MAX_ENDED_JOBS);
  if (over.length === 0) return jobs;
  const removed = new Set(over.map(({ id }) => id));
  return {
    ...jobs,
    byId: Object.fromEntries(Object.entries(jobs.byId).filter(([id]) => !removed.has(id))),
  };
}

/** Adds a job that was just sent. */
export function sent(jobs: Jobs, id: string, now: number): Jobs {
  return { ...jobs, byId: { ...jobs.byId, [id]: blank(id, now) } };
}

export function blank(id: string, created: number): Job {
  return {
    id,
    status: "pending",
    created,
    started: null,
    ended: null,
    predicted: null,
    nodes: {},
    outputs: {},
    preview: null,
    warnings: [],
    plans: {},
    spans: {},
    error: null,
  };
}

function queueOf(queue: MessageFields<QueueData>): Queue {
  const places = Object.entries(fieldsOf(queue.places)).map(([id, place]) => [
    id,
    numberFrom(place),
  ]);
  return {
    running: numberFrom(queue.running),
    pending: numberFrom(queue.pending),
    paused: queue.paused === true,
    places: Object.fromEntries(places) as Record<string, number>,
  };
}

/** Resets running jobs that are in the queue again. */
function waiting(jobs: Jobs): Jobs {
  const again = Object.values(jobs.byId).filter(
    (job) => job.status === "running" && job.id in jobs.queue.places,
  );
  if (again.length === 0) return jobs;
  const changed = again.map((job) => [job.id, blank(job.id, job.created)]);
  return { ...jobs, byId: { ...jobs.byId, ...Object.fromEntries(changed) } };
}

function jobOf(known: MessageFields<JobData>): Job {
  const state = messageFields<RunningData>(known.state);
  const job: Job = {
    ...blank(textOf(known.id), numberFrom(known.created)),
    status: statusOf(known.status),
    started: numberOrNull(known.started),
    ended: numberOrNull(known.ended),
    predicted: numberOrNull(known.predicted),
    nodes: nodesOf(state.nodes),
    outputs: outputsOf(state.nodes),
    preview: pictureOf(messageFields<PreviewData>(state.preview)),
    warnings: textsOf(state.warnings),
    plans: byShown(state.plans),
    spans: spansOf(state.timeline),
  };
  return known.result ? ended(job, messageFields<Ended>(known.result)) : job;
}

/** Adds the report of a job that ended before this page loaded it. */
export function reported(jobs: Jobs, answer: unknown): Jobs {
  const report = messageFields<JobReport>(answer);
  const job = jobs.byId[textOf(report.job)];
  if (job === undefined) return jobs;
  const known: Job = {
    ...job,
    nodes: { ...nodesOf(report.nodes), ...job.nodes },
    plans: byShown(report.plans),
    spans: spansOf(report.timeline),
    warnings: textsOf(report.warnings),
  };
  return { ...jobs, byId: { ...jobs.byId, [job.id]: known } };
}

function spansOf(timeline: unknown): Job["spans"] {
  return readMessages<Timeline, MessageFields<Timeline>>(timeline, (one) => one).reduce(
    withSpans,
    {},
  );
}

function statusOf(value: unknown): JobStatus {
  const status = textOf(value);
  if (status === "in_progress") return "running";
  return status === "completed" || status === "failed" || status === "cancelled"
    ? status
    : "pending";
}

function nodesOf(raw: unknown): Record<string, NodeRun> {
  const found: Record<string, NodeRun> = {};
  for (const [id, value] of Object.entries(fieldsOf(raw))) {
    const node = messageFields<NodeProgress | NodeReport>(value);
    const shown = shownAs(textOf(node.display) || id);
    const status = textOf(node.status);
    found[shown] = {
      phase: status === "error" ? "failed" : status === "running" ? "running" : doneAs(node.cached),
      value: numberFrom(node.value),
      maximum: numberFrom(node.maximum, 1),
      seconds: numberFrom(node.seconds) + (found[shown]?.seconds ?? 0),
      why: textOf(node.why),
    };
  }
  return found;
}

function outputsOf(raw: unknown): Job["outputs"] {
  const nodes = Object.entries(fieldsOf(raw)).map(
    ([id, node]) => [id, messageFields<NodeProgress>(node)] as const,
  );
  const shown = nodes.filter(([, { ui }]) => ui);
  return Object.fromEntries(
    shown.map(([id, { display, ui }]) => [shownAs(textOf(display) || id), ui]),
  ) as Job["outputs"];
}

function doneAs(cached: unknown): NodePhase {
  return cached === true ? "cached" : "done";
}

function pictureOf(preview: MessageFields<PreviewData>): Picture | null {
  return preview.image instanceof Uint8Array
    ? {
        node: shownAs(textOf(preview.display) || preview.node),
        image: preview.image,
        mediaType: textOf(preview.media_type),
      }
    : null;
}

function heard(jobs: Jobs, event: MessageFields<JobEvent>): Jobs {
  const id = textOf(event.job);
  const job = jobs.byId[id];
  if (job === undefined) return jobs;
  const next = after(job, event);
  return next === job ? jobs : { ...jobs, byId: { ...jobs.byId, [id]: next } };
}

function after(job: Job, event: MessageFields<JobEvent>): Job {
  const shown = shownAs(textOf(event.display) || event.node);
  switch (event.kind as JobEvent["kind"]) {
    case "started":
      return { ...job, status: "running", started: numberFrom(event.at) };
    case "cached": {
      const nodes = { ...job.nodes };
      for (const node of listOf(event.nodes).map(shownAs))
        nodes[node] = { phase: "cached", value: 1, maximum: 1, seconds: 0, why: "" };
      return { ...job, nodes };
    }
    case "node_started":
      return withNode(job, shown, { phase: "running", value: 0, maximum: 1 });
    case "progress":
      return withNode(job, shown, {
        phase: "running",
        value: numberFrom(event.value),
        maximum: numberFrom(event.maximum, 1),
      });
    case "node_done": {
      const before = job.nodes[shown];
      const done = withNode(job, shown, {
        phase: doneAs(event.cached),
        seconds: numberFrom(event.seconds) + (before?.seconds ?? 0),
        why: textOf(event.why),
      });
      return event.ui
        ? { ...done, outputs: { ...done.outputs, [shown]: event.ui as Job["outputs"][string] } }
        : done;
    }
    case "previewed":
      return { ...job, preview: pictureOf(event) };
    case "plan_made":
      return { ...job, plans: { ...job.plans, [shownAs(event.node)]: event.plan } };
    case "timeline":
      return { ...job, spans: withSpans(job.spans, event) };
    case "warned":
      return { ...job, warnings: [...job.warnings, textOf(event.message)].slice(-100) };
    case "ended":
      return ended(job, event);
    default:
      return job;
  }
}

function withNode(job: Job, node: string, change: Partial<NodeRun>): Job {
  const before = job.nodes[node] ?? {
    phase: "running",
    value: 0,
    maximum: 1,
    seconds: 0,
    why: "",
  };
  return { ...job, nodes: { ...job.nodes, [node]: { ...before, ...change } } };
}

function ended(job: Job, event: MessageFields<Ended>): Job {
  const status = textOf(event.status) as JobStatus;
  const error = event.error ? messageFields<JobError>(event.error) : null;
  const node = error === null ? "" : shownAs(textOf(error.display) || error.node);
  const nodes = { ...job.nodes };
  for (const [id, run] of Object.entries(nodes))
    if (run.phase === "running") {
      if (status === "completed") nodes[id] = { ...run, phase: "done", value: run.maximum };
      else delete nodes[id];
    }
  if (node !== "")
    nodes[node] = {
      phase: "failed",
      value: 0,
      maximum: 1,
      seconds: 0,
      why: error === null ? "" : textOf(error.message),
    };
  return {
    ...job,
    status,
    ended: numberFrom(event.at),
    nodes,
    outputs: { ...job.outputs, ...(byShown(event.outputs) as Job["outputs"]) },
    preview: null,
    error: error === null ? null : { message: textOf(error.message), node },
  };
}
