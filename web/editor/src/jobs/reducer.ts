/**
 * Follows jobs by the frames of the native channel: a snapshot replaces all that is known but jobs
 * that are on their way to the server, events add to it. Pure; pictures are bytes here.
 */
import { numberFrom, textOf } from "../json";
import {
  type Job,
  type JobStatus,
  type Jobs,
  type NodePhase,
  type NodeRun,
  type Picture,
  type Queue,
} from "./job";
import { byShown, type Fields, fields, numberOrNull, shownAs } from "./parts";
import { withSpans } from "./spans";

/** How many jobs that ended and that no document shows are known. */
const ENDED = 8;

export function reduce(jobs: Jobs, frame: unknown): Jobs {
  const told = fields(frame);
  switch (told.type) {
    case "snapshot": {
      const found = (told.jobs as readonly unknown[]).map(jobOf);
      const underway = Object.values(jobs.byId).filter(
        ({ id, status }) => status === "pending" && !(id in jobs.queue.places),
      );
      return {
        byId: Object.fromEntries([...underway, ...found].map((job) => [job.id, job])),
        queue: queueOf(told.queue),
      };
    }
    case "queue":
      return waiting({ ...jobs, queue: queueOf(told.queue ?? told) });
    case "event":
      return heard(jobs, fields(told.event));
    default:
      return jobs;
  }
}

/** Forgets the oldest jobs that ended, but `ENDED` of them and those that a document shows. */
export function trimmed(jobs: Jobs, shown: ReadonlySet<string>): Jobs {
  const over = Object.values(jobs.byId)
    .filter(({ id, ended: at }) => at !== null && !shown.has(id))
    .sort((one, other) => (other.ended ?? 0) - (one.ended ?? 0))
    .slice(ENDED);
  if (over.length === 0) return jobs;
  const gone = new Set(over.map(({ id }) => id));
  return {
    ...jobs,
    byId: Object.fromEntries(Object.entries(jobs.byId).filter(([id]) => !gone.has(id))),
  };
}

/** Notes a job that was just sent. */
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

function queueOf(raw: unknown): Queue {
  const told = fields(raw);
  const places = Object.entries(fields(told.places)).map(([id, place]) => [id, numberFrom(place)]);
  return {
    running: numberFrom(told.running),
    pending: numberFrom(told.pending),
    paused: told.paused === true,
    places: Object.fromEntries(places) as Record<string, number>,
  };
}

/** A job that waits again has lost what was told of its nodes. */
function waiting(jobs: Jobs): Jobs {
  const again = Object.values(jobs.byId).filter(
    (job) => job.status === "running" && job.id in jobs.queue.places,
  );
  if (again.length === 0) return jobs;
  const changed = again.map((job) => [job.id, blank(job.id, job.created)]);
  return { ...jobs, byId: { ...jobs.byId, ...Object.fromEntries(changed) } };
}

function jobOf(raw: unknown): Job {
  const told = fields(raw);
  const state = fields(told.state);
  const preview = fields(state.preview);
  const job: Job = {
    ...blank(textOf(told.id), numberFrom(told.created)),
    status: statusOf(told),
    started: numberOrNull(told.started),
    ended: numberOrNull(told.ended),
    predicted: numberOrNull(told.predicted),
    nodes: nodesOf(state.nodes),
    outputs: outputsOf(state.nodes),
    preview: state.preview ? pictureOf(preview) : null,
    warnings: ((state.warnings ?? []) as readonly unknown[]).map((one) => textOf(one)),
    plans: byShown(state.plans),
    spans: ((state.timeline ?? []) as readonly unknown[]).map(fields).reduce(withSpans, {}),
  };
  return told.result ? ended(job, fields(told.result)) : job;
}

/** Takes in the report of a job that ended before this page knew it. */
export function reported(jobs: Jobs, report: unknown): Jobs {
  const told = fields(report);
  const job = jobs.byId[textOf(told.job)];
  if (job === undefined) return jobs;
  const known: Job = {
    ...job,
    nodes: { ...nodesOf(told.nodes), ...job.nodes },
    plans: byShown(told.plans),
    spans: ((told.timeline ?? []) as readonly unknown[]).map(fields).reduce(withSpans, {}),
    warnings: ((told.warnings ?? []) as readonly unknown[]).map((one) => textOf(one)),
  };
  return { ...jobs, byId: { ...jobs.byId, [job.id]: known } };
}

function statusOf(told: Fields): JobStatus {
  const status = textOf(told.status);
  if (status === "in_progress") return "running";
  return status === "completed" || status === "failed" || status === "cancelled"
    ? status
    : "pending";
}

function nodesOf(raw: unknown): Record<string, NodeRun> {
  const found: Record<string, NodeRun> = {};
  for (const [id, value] of Object.entries(fields(raw))) {
    const node = fields(value);
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
  const shown = Object.entries(fields(raw)).filter(([, node]) => fields(node).ui);
  return Object.fromEntries(
    shown.map(([id, node]) => [shownAs(textOf(fields(node).display) || id), fields(node).ui]),
  ) as Job["outputs"];
}

function doneAs(cached: unknown): NodePhase {
  return cached === true ? "cached" : "done";
}

function pictureOf(told: Fields): Picture | null {
  return told.image instanceof Uint8Array
    ? {
        node: shownAs(textOf(told.display) || told.node),
        image: told.image,
        mediaType: textOf(told.media_type),
      }
    : null;
}

function heard(jobs: Jobs, event: Fields): Jobs {
  const id = textOf(event.job);
  const job = jobs.byId[id];
  if (job === undefined) return jobs;
  const next = after(job, event);
  return next === job ? jobs : { ...jobs, byId: { ...jobs.byId, [id]: next } };
}

function after(job: Job, event: Fields): Job {
  const shown = shownAs(textOf(event.display) || event.node);
  switch (event.kind) {
    case "started":
      return { ...job, status: "running", started: numberFrom(event.at) };
    case "cached": {
      const nodes = { ...job.nodes };
      for (const node of (event.nodes as readonly string[]).map(shownAs))
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

function ended(job: Job, event: Fields): Job {
  const status = textOf(event.status) as JobStatus;
  const error = event.error ? fields(event.error) : null;
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
