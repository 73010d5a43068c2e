// Made by messages.mjs from `katz schema`: not to be edited.

/**
 * The messages between katz serve and its clients.
 */
export interface Messages {
  PromptBody: PromptBody;
  PlanBody: PlanBody;
  TokensBody: TokensBody;
  UnfoldBody: UnfoldBody;
  ForgetBody: ForgetBody;
  InterruptBody: InterruptBody;
  FreeBody: FreeBody;
  CancelBody: CancelBody;
  FilesBody: FilesBody;
  MoveBody: MoveBody;
  PresenceBody: PresenceBody;
  ClientFrame: Ping | Watch;
  OpenedWorkflow: OpenedWorkflow;
  CheckedWorkflow: CheckedWorkflow;
  PlannedWorkflow: PlannedWorkflow;
  CountedTexts: CountedTexts;
  WrittenStep: WrittenStep;
  FilePage: FilePage;
  MovedFiles: MovedFiles;
  PackList: PackList;
  OthersThere: OthersThere;
  Templates: Template[];
  JobReport: JobReport;
  ServerFrame: SnapshotFrame | QueueFrame | EventFrame | JobFrame | PongFrame;
  JobEvent:
    | ({
        at: number;
        kind: "started";
      } & {
        job: string;
      })
    | ({
        nodes: string[];
        at: number;
        kind: "cached";
      } & {
        job: string;
      })
    | ({
        node: string;
        display: string;
        type: string;
        kind: "node_started";
      } & {
        job: string;
      })
    | ({
        node: string;
        value: number;
        maximum: number;
        evaluations: boolean;
        kind: "progress";
        display: string;
      } & {
        job: string;
      })
    | ({
        node: string;
        display: string;
        type: string;
        cached: boolean;
        seconds: number;
        why: string;
        ui: {
          [k: string]: unknown[];
        } | null;
        kind: "node_done";
      } & {
        job: string;
      })
    | ({
        node: string;
        display: string;
        image: string;
        media_type: string;
        lasting: boolean;
        kind: "previewed";
      } & {
        job: string;
      })
    | ({
        node: string;
        plan: DescribedPlan;
        kind: "plan_made";
      } & {
        job: string;
      })
    | ({
        node: string;
        segments: Span[];
        kind: "timeline";
      } & {
        job: string;
      })
    | ({
        type: string;
        data: unknown;
        client: string | null;
        kind: "pack_message";
      } & {
        job: string;
      })
    | ({
        message: string;
        kind: "warned";
      } & {
        job: string;
      })
    | ({
        path: string;
        place: "output" | "temp";
        kind: "wrote";
      } & {
        job: string;
      })
    | ({
        status: "completed" | "failed" | "cancelled";
        at: number;
        error: JobError | null;
        outputs: {
          [k: string]: {
            [k: string]: unknown[];
          };
        };
        meta: {
          [k: string]: {
            [k: string]: string | null;
          };
        };
        executed: string[];
        seconds: {
          [k: string]: number;
        };
        predicted: number | null;
        approximations: string[];
        cached: string[];
        interrupted?: JobNode | null;
        kind: "ended";
      } & {
        job: string;
      });
  Plan: DescribedPlan;
}
/**
 * `POST /prompt`. `prompt` is a graph in API format or a workflow as the editor saves it (a
 * dict with `nodes`).
 */
export interface PromptBody {
  prompt: {
    [k: string]: unknown;
  };
  client_id?: string | null;
  /**
   * a lowercase UUID with hyphens; generated if absent
   */
  prompt_id?: string | null;
  extra_data?: {
    [k: string]: unknown;
  } | null;
  /**
   * place in the queue, lowest first
   */
  number?: number | null;
  front?: boolean;
  partial_execution_targets?: string[] | null;
  /**
   * the job is refused on arrival if it cannot end in this time
   */
  deadline_seconds?: number | null;
}
/**
 * `POST /katz/plan`. `packs`: pack nodes may run. The changes apply only to this plan.
 */
export interface PlanBody {
  /**
   * device names, or NAME*N for N equal devices
   *
   * @maxItems 64
   */
  devices?: string[];
  /**
   * STAGE=DEVICE
   *
   * @maxItems 64
   */
  place?: string[];
  allow?: string | null;
  /**
   * GBPS[,MS]
   */
  link?: string | null;
  batching?: boolean | null;
  prompt: {
    [k: string]: unknown;
  };
  client_id?: string | null;
  partial_execution_targets?: string[] | null;
  packs?: boolean;
}
/**
 * `POST /katz/tokens`: a workflow of any format.
 */
export interface TokensBody {
  prompt: {
    [k: string]: unknown;
  };
}
/**
 * `POST /katz/unfold`. `node`: the sampler's id in events.
 */
export interface UnfoldBody {
  prompt: {
    [k: string]: unknown;
  };
  node: string;
}
/**
 * `POST /queue` and `POST /history`: removes all jobs (`clear`) or those in `delete`.
 */
export interface ForgetBody {
  clear?: boolean;
  /**
   * @maxItems 10000
   */
  delete?: string[];
}
export interface InterruptBody {
  prompt_id?: string | null;
}
export interface FreeBody {
  unload_models?: boolean;
  free_memory?: boolean;
}
export interface CancelBody {
  /**
   * @maxItems 10000
   */
  job_ids: string[];
}
/**
 * `POST /katz/files/trash` and `/katz/files/restore`.
 */
export interface FilesBody {
  /**
   * @maxItems 1000
   */
  names: string[];
  type?: "input" | "output";
}
/**
 * `POST /katz/jobs/{id}/move`: sets exactly one field.
 */
export interface MoveBody {
  front?: boolean;
  before?: string | null;
  number?: number | null;
}
/**
 * `POST /katz/presence`: a page, by a self-chosen id, and its open files.
 */
export interface PresenceBody {
  page: string;
  /**
   * the user's display name
   */
  name?: string;
  /**
   * @maxItems 100
   */
  files: string[];
}
export interface Ping {
  type: "ping";
}
export interface Watch {
  type: "watch";
  job: string;
}
/**
 * Answers `/katz/open`: the editor's document, and lines for the user.
 */
export interface OpenedWorkflow {
  document: {
    [k: string]: unknown;
  };
  notes: string[];
}
/**
 * Answers `/katz/check`: the errors that `/prompt` would return. `targets` are the outputs that
 * would run, `refused` the others.
 */
export interface CheckedWorkflow {
  error: {
    [k: string]: unknown;
  } | null;
  node_errors: {
    [k: string]: unknown;
  };
  targets: string[];
  refused: string[];
  notes: string[];
}
/**
 * Answers `/katz/plan`: a plan per sampler that could be planned. `approximations`: the names
 * that `allow` of a request may have.
 */
export interface PlannedWorkflow {
  plans: DescribedPlan[];
  error: {
    [k: string]: unknown;
  } | null;
  node_errors: {
    [k: string]: unknown;
  };
  notes: string[];
  approximations: string[];
}
/**
 * Describes the plan of one sampler. Results of passes that have not run are empty or null.
 *
 * `operations` lists hoisted operations first; `before_edges` lead into hoisted operations.
 * `begin` and `end` are nodes of the step region, which edges also name. `alternatives` maps
 * considered plans to seconds; `chosen` is this plan's key. `instructions` maps devices to counts.
 * `prologue` is the part before the first prediction, `timeline` shows two steady evaluations.
 */
export interface DescribedPlan {
  sampler: string;
  evaluations: number;
  latent: number[];
  devices: string[];
  dtype: string;
  pinned_by: string[];
  begin: string;
  end: string;
  operations: DescribedOperation[];
  hoisted: string[];
  before: HoistedCall[];
  before_edges: DescribedEdge[];
  variants: DescribedVariant[];
  work: {
    [k: string]: DescribedWork;
  };
  placement: {
    [k: string]: string;
  };
  owner: string;
  delayed: string[];
  pins: {
    [k: string]: string[];
  };
  allowed: string[];
  links: DescribedLink[];
  alternatives: {
    [k: string]: number;
  };
  chosen: string;
  notes: string[];
  instructions: {
    [k: string]: number;
  };
  prologue: DescribedTimeline | null;
  timeline: DescribedTimeline | null;
  prediction: DescribedPrediction | null;
  reuse: DescribedReuse | null;
  similar_start: DescribedStart | null;
}
/**
 * Describes a computation of the loop, or one that precedes it (`hoisted`).
 *
 * `node` is the submitted workflow's node: one of an explicit step region, else the sampler.
 * `branch` names the conditioning entry of a sampler's operation, such as negative2; else empty.
 * `label` is for display. `recorded`: CUDA devices may record the calls as CUDA graphs.
 * `unprepared`: module blocks that run their library's forward on GPUs, with the reason.
 */
export interface DescribedOperation {
  id: string;
  label: string;
  stage: string;
  type: string;
  branch: string;
  node: string;
  hoisted: boolean;
  recorded: boolean;
  unprepared: string[];
}
/**
 * Describes a call that precedes the loop and runs once per request.
 */
export interface HoistedCall {
  operations: string[];
  stage: string;
  seconds: number;
  device: string;
}
/**
 * Carries `bytes` from an output to an input. `delay` is the age of the value in evaluations.
 * `stale`: the plan added the delay; the workflow has none.
 */
export interface DescribedEdge {
  from: string;
  output: number;
  to: string;
  input: string;
  bytes: number;
  delay: number;
  stale: boolean;
}
/**
 * Describes one kind of evaluation. `operations` are in topological order; `edges` lead into
 * them and into the region's end. `carried` are the slots that the next evaluation reads.
 */
export interface DescribedVariant {
  name: string;
  evaluations: number[];
  tree: string | null;
  operations: string[];
  edges: DescribedEdge[];
  carried: number[];
  segments: DescribedSegment[];
}
/**
 * Describes consecutive calls of one device. `beside`: indices of calls that may run
 * concurrently with the next call on a GPU.
 */
export interface DescribedSegment {
  name: string;
  device: string;
  calls: DescribedCall[];
  beside: number[];
}
/**
 * Describes one call, of one operation or several equal ones.
 */
export interface DescribedCall {
  operations: string[];
  stage: string;
  seconds: number;
}
/**
 * Counts the work of one operation.
 */
export interface DescribedWork {
  flops: number;
  weight_bytes: number;
}
/**
 * Describes one direction between two devices.
 */
export interface DescribedLink {
  from: string;
  to: string;
  bytes_per_second: number;
  latency_seconds: number;
}
/**
 * Holds a part of the simulation. `first` is its first evaluation, `boundaries` are the times
 * of predictions, `rows` are devices, each between its loads from templates and its outgoing
 * links.
 */
export interface DescribedTimeline {
  first: number;
  seconds: number;
  boundaries: number[];
  rows: string[];
  spans: DescribedSpan[];
}
/**
 * Describes one activity of a device, or of a direction of a link ("cpu:1 -> cpu:0"), in
 * seconds from the start of its timeline. `after`: the index of the span it waited for.
 */
export interface DescribedSpan {
  resource: string;
  what: string;
  stage: string;
  evaluation: number | null;
  start: number;
  seconds: number;
  after: number | null;
}
/**
 * Predicts the seconds of a request: as planned, with free communication and unlimited devices,
 * and one operation after the other. Also predicts an evaluation's steady period and names its
 * limit (`binding`). `evaluation_seconds`: seconds until each prediction, from the one before.
 * `evaluations`: those of a request whose devices other requests may use.
 */
export interface DescribedPrediction {
  planned_seconds: number;
  ideal_seconds: number;
  sequential_seconds: number;
  period_seconds: number;
  binding: string;
  evaluation_seconds: number[];
  evaluations: DescribedEvaluations[];
}
/**
 * Describes consecutive evaluations of one kind: the number of them, the rows of the largest
 * call, and the seconds of one alone. Requests may share evaluations of equal keys, which then
 * take `seconds_by_rows`, for 1, 2, 4, 8 and 16 rows of all requests; without a key they share
 * none.
 */
export interface DescribedEvaluations {
  number: number;
  rows: number;
  alone_seconds: number;
  key: string;
  seconds_by_rows: number[];
}
/**
 * Describes the reuse of a template's activations in an evaluation of the commonest kind: its
 * seconds in full, with all layers cached and as chosen, the numbers of layers that may be cached
 * and are, the bytes that it loads and the seconds of the busiest link. `active_share`: of the
 * tokens. `layers` maps operations to their cached layers. `why_not` is the reason if there are
 * none.
 */
export interface DescribedReuse {
  full_seconds: number;
  cached_seconds: number;
  chosen_seconds: number;
  layer_count: number;
  cached_layer_count: number;
  bytes_loaded: number;
  load_seconds: number;
  active_share: number;
  layers: {
    [k: string]: string[];
  };
  why_not: string;
}
/**
 * Describes a start from the picture of a similar prompt: the picture's id, the cosine
 * similarity of both prompts' encodings, and the evaluations that it saves, of those of the full
 * request. `why_not` is the reason if there is no such picture.
 */
export interface DescribedStart {
  picture: string;
  similarity: number;
  evaluations_saved: number;
  evaluations_in_full: number;
  why_not: string;
}
/**
 * Answers `/katz/tokens`: the lengths of prompts, by node and input.
 */
export interface CountedTexts {
  texts: {
    [k: string]: {
      [k: string]: TextSize[];
    };
  };
}
/**
 * Holds the length of a text for a text encoder. Counts no start and end tokens.
 */
export interface TextSize {
  encoder: string;
  tokens: number;
  chunks: number;
  most: number;
}
/**
 * Holds the nodes that replace a sampler, in topological order. Node `end` has the same outputs
 * as the sampler, with the same numbers.
 *
 * `passed_by` lists nodes of the graph that the step replaces, the nearest to the sampler first.
 * They can be removed if nothing else reads them.
 */
export interface WrittenStep {
  nodes: StepNode[];
  end: string;
  passed_by: string[];
}
/**
 * A node of a step. Each input is a value, an output of another node of the step (`links`), or
 * a copy of a link of the graph (`sources`).
 */
export interface StepNode {
  name: string;
  type: string;
  title: string;
  values: {
    [k: string]: unknown;
  };
  links: {
    /**
     * @minItems 2
     * @maxItems 2
     */
    [k: string]: [unknown, unknown];
  };
  sources: {
    /**
     * @minItems 2
     * @maxItems 2
     */
    [k: string]: [unknown, unknown];
  };
}
/**
 * Answers `/katz/files`, newest first. `next` is the `after` of the next page, or null.
 */
export interface FilePage {
  files: ListedFile[];
  next: string | null;
}
/**
 * A file: `name` is the `filename` of `/view`, `modified` in seconds since the epoch. `width`
 * and `height` are in pixels, null unless the file is a picture; `job` is null if unknown or
 * unfinished. `workflow`: the id of the job's document; `node`: the node that shows the file.
 */
export interface ListedFile {
  name: string;
  type: "input" | "output";
  bytes: number;
  modified: number;
  width: number | null;
  height: number | null;
  job: string | null;
  workflow: string | null;
  node: string | null;
}
/**
 * Answers `/katz/files/trash` and `/katz/files/restore`. Omits missing files.
 */
export interface MovedFiles {
  files: MovedFile[];
}
/**
 * A moved file: its previous name and its new one (`now`).
 */
export interface MovedFile {
  name: string;
  now: string;
}
/**
 * Answers `/katz/packs`: the packs found at the start, with those that failed.
 */
export interface PackList {
  packs: ListedPack[];
}
/**
 * A pack: its number of node types, whether it has scripts for ComfyUI's front end (not run),
 * and the reasons why the pack or nodes were omitted.
 */
export interface ListedPack {
  name: string;
  nodes: number;
  scripts: boolean;
  problems: string[];
}
/**
 * Answers `/katz/presence`: the user names of other pages, by open file.
 */
export interface OthersThere {
  files: {
    [k: string]: string[];
  };
}
/**
 * A shipped workflow. `picture`: its URL path on the server; `description`: one line for the
 * user.
 */
export interface Template {
  name: string;
  title: string;
  description: string;
  picture: string;
}
/**
 * Describes a job. Times are seconds since the epoch; those in `timeline` count from the job's
 * start. `predicted`: planned seconds of sampling.
 *
 * `plans` are by node, as `katz plan --json` prints them. Contains only the most recent plans,
 * spans and warnings, like the native channel's state.
 */
export interface JobReport {
  job: string;
  status: "pending" | "in_progress" | "completed" | "failed" | "cancelled";
  started: number | null;
  ended: number | null;
  predicted: number | null;
  seconds: {
    [k: string]: number;
  };
  error: JobError | null;
  nodes: {
    [k: string]: NodeReport;
  };
  plans: {
    [k: string]: DescribedPlan;
  };
  timeline: Timeline[];
  warnings: string[];
}
/**
 * Describes a job's failure: one line for users, and the failed node. `kind`: InputError,
 * RunError, OutOfMemory, WorkerLost.
 *
 * `display` is the prompt's node that expanded to the failed node, if any; empty if the whole job
 * failed.
 */
export interface JobError {
  kind: string;
  message: string;
  node: string;
  node_type: string;
  display: string;
}
/**
 * A node of a job, by its id in the graph that ran; `display` is the node of the prompt.
 */
export interface NodeReport {
  display: string;
  type: string;
  status: "running" | "finished" | "error";
  cached: boolean;
  seconds: number;
  why: string;
}
/**
 * Reports the spans of a node since its last report.
 */
export interface Timeline {
  node: string;
  segments: Span[];
  kind: "timeline";
}
/**
 * Reports that a device was busy for a time. `name`: label for users.
 *
 * `kind` is the kind of work. `target` is its object: a segment, an operation (`send`, `prepare`),
 * a weight set (`patch`), a stage outside samplers or a node type. `peer` is the receiver of a
 * transfer. `start` uses the clock of `time.perf_counter`; clients get seconds since the start of
 * the job. GPU times are measured on the GPU, not at launch.
 */
export interface Span {
  device: string;
  name: string;
  start: number;
  seconds: number;
  evaluation: number | null;
  kind: "segment" | "send" | "patch" | "prepare" | "load" | "stage" | "node";
  target: string;
  peer: string | null;
}
/**
 * The state for a client that connects.
 */
export interface SnapshotFrame {
  seq: number;
  client: string;
  server: {
    [k: string]: unknown;
  };
  queue: QueueData;
  jobs: JobData[];
  type: "snapshot";
}
/**
 * The running and waiting jobs, and the jobs ahead of each waiting job of the client.
 */
export interface QueueData {
  running: number;
  pending: number;
  paused: boolean;
  places: {
    [k: string]: number;
  };
}
/**
 * One of the client's jobs. Times are seconds since the epoch. `result` is null before the end,
 * `state` unless running.
 */
export interface JobData {
  id: string;
  status: "pending" | "in_progress" | "completed" | "failed" | "cancelled";
  number: number;
  created: number;
  started: number | null;
  ended: number | null;
  deadline: number | null;
  predicted: number | null;
  targets: string[];
  result:
    | ({
        status: "completed" | "failed" | "cancelled";
        at: number;
        error: JobError | null;
        outputs: {
          [k: string]: {
            [k: string]: unknown[];
          };
        };
        meta: {
          [k: string]: {
            [k: string]: string | null;
          };
        };
        executed: string[];
        seconds: {
          [k: string]: number;
        };
        predicted: number | null;
        approximations: string[];
        cached: string[];
        interrupted?: JobNode | null;
        kind: "ended";
      } & {
        job: string;
      })
    | null;
  state: RunningData | null;
}
/**
 * Names a node that ran. `display` is the prompt's node that is shown for it.
 */
export interface JobNode {
  node: string;
  node_type: string;
  display: string;
}
/**
 * The state of a running job.
 */
export interface RunningData {
  started: number | null;
  nodes: {
    [k: string]: NodeProgress;
  };
  plans: {
    [k: string]: DescribedPlan;
  };
  timeline: Timeline[];
  warnings: string[];
  preview: PreviewData | null;
}
/**
 * The progress of a node: `value` of `maximum` is done. A cached node is finished.
 */
export interface NodeProgress {
  display: string;
  type: string;
  status: "running" | "finished" | "error";
  value: number;
  maximum: number;
  cached: boolean;
  seconds: number;
  why: string;
  ui: {
    [k: string]: unknown[];
  } | null;
}
/**
 * The last unfinished picture of a job.
 */
export interface PreviewData {
  node: string;
  display: string;
  image: string;
  media_type: string;
}
/**
 * The queue changed.
 */
export interface QueueFrame {
  seq: number;
  running: number;
  pending: number;
  paused: boolean;
  places: {
    [k: string]: number;
  };
  type: "queue";
}
/**
 * An event of one of the client's jobs.
 */
export interface EventFrame {
  seq: number;
  event:
    | ({
        at: number;
        kind: "started";
      } & {
        job: string;
      })
    | ({
        nodes: string[];
        at: number;
        kind: "cached";
      } & {
        job: string;
      })
    | ({
        node: string;
        display: string;
        type: string;
        kind: "node_started";
      } & {
        job: string;
      })
    | ({
        node: string;
        value: number;
        maximum: number;
        evaluations: boolean;
        kind: "progress";
        display: string;
      } & {
        job: string;
      })
    | ({
        node: string;
        display: string;
        type: string;
        cached: boolean;
        seconds: number;
        why: string;
        ui: {
          [k: string]: unknown[];
        } | null;
        kind: "node_done";
      } & {
        job: string;
      })
    | ({
        node: string;
        display: string;
        image: string;
        media_type: string;
        lasting: boolean;
        kind: "previewed";
      } & {
        job: string;
      })
    | ({
        node: string;
        plan: DescribedPlan;
        kind: "plan_made";
      } & {
        job: string;
      })
    | ({
        node: string;
        segments: Span[];
        kind: "timeline";
      } & {
        job: string;
      })
    | ({
        type: string;
        data: unknown;
        client: string | null;
        kind: "pack_message";
      } & {
        job: string;
      })
    | ({
        message: string;
        kind: "warned";
      } & {
        job: string;
      })
    | ({
        path: string;
        place: "output" | "temp";
        kind: "wrote";
      } & {
        job: string;
      })
    | ({
        status: "completed" | "failed" | "cancelled";
        at: number;
        error: JobError | null;
        outputs: {
          [k: string]: {
            [k: string]: unknown[];
          };
        };
        meta: {
          [k: string]: {
            [k: string]: string | null;
          };
        };
        executed: string[];
        seconds: {
          [k: string]: number;
        };
        predicted: number | null;
        approximations: string[];
        cached: string[];
        interrupted?: JobNode | null;
        kind: "ended";
      } & {
        job: string;
      });
  type: "event";
}
/**
 * Answers `watch`; `job` is null for jobs of other clients.
 */
export interface JobFrame {
  seq: number;
  id: string;
  job: JobData | null;
  type: "job";
}
/**
 * Answers `ping`.
 */
export interface PongFrame {
  seq: number;
  type: "pong";
}
