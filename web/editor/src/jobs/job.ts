/** Defines the state of jobs and of the queue. */

export type NodePhase = "running" | "done" | "cached" | "failed";

export interface NodeRun {
  readonly phase: NodePhase;
  readonly value: number;
  readonly maximum: number;
  readonly seconds: number;
  readonly why: string;
}

export interface Picture {
  readonly node: string;
  readonly image: Uint8Array;
  readonly mediaType: string;
}

/** A measured span of work on a device. */
export interface MeasuredSpan {
  readonly device: string;
  readonly kind: string;
  /** The name of a segment, operation, weight set or stage. */
  readonly target: string;
  /** The receiver of a transfer. */
  readonly peer: string;
  /** Seconds since the start of the job. */
  readonly start: number;
  readonly seconds: number;
  readonly evaluation: number | null;
}

export type JobStatus = "pending" | "running" | "completed" | "failed" | "cancelled";

export interface Job {
  readonly id: string;
  readonly status: JobStatus;
  readonly created: number;
  readonly started: number | null;
  readonly ended: number | null;
  readonly predicted: number | null;
  /** By the document node that shows it. */
  readonly nodes: Readonly<Record<string, NodeRun>>;
  readonly outputs: Readonly<Record<string, Readonly<Record<string, readonly unknown[]>>>>;
  readonly preview: Picture | null;
  readonly warnings: readonly string[];
  readonly plans: Readonly<Record<string, unknown>>;
  /** The last measured spans of each sampler node. */
  readonly spans: Readonly<Record<string, readonly MeasuredSpan[]>>;
  readonly error: { readonly message: string; readonly node: string } | null;
}

export interface Queue {
  readonly running: number;
  readonly pending: number;
  readonly paused: boolean;
  /** The number of jobs before each of this client's waiting jobs. */
  readonly places: Readonly<Record<string, number>>;
}

export interface Jobs {
  readonly byId: Readonly<Record<string, Job>>;
  readonly queue: Queue;
}

export const NO_JOBS: Jobs = {
  byId: {},
  queue: { running: 0, pending: 0, paused: false, places: {} },
};
