/** What is known of jobs and of the queue. */

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

/** A device worked for a while, as it was measured. */
export interface MeasuredSpan {
  readonly device: string;
  readonly kind: string;
  /** A segment, an operation, a weight set, a stage. */
  readonly target: string;
  /** Who was sent something. */
  readonly peer: string;
  /** Seconds since the job started. */
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
  /** By the node of the document that shows it. */
  readonly nodes: Readonly<Record<string, NodeRun>>;
  readonly outputs: Readonly<Record<string, Readonly<Record<string, readonly unknown[]>>>>;
  readonly preview: Picture | null;
  readonly warnings: readonly string[];
  readonly plans: Readonly<Record<string, unknown>>;
  /** What was measured while a node sampled, the last spans of each. */
  readonly spans: Readonly<Record<string, readonly MeasuredSpan[]>>;
  readonly error: { readonly message: string; readonly node: string } | null;
}

export interface Queue {
  readonly running: number;
  readonly pending: number;
  readonly paused: boolean;
  /** Of this client's waiting jobs: how many wait before each. */
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
