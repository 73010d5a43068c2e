/** Sends requests to the server. Throws `Refused` with the server's message if it refuses one. */

import { asPrompt } from "../document/editorData";
import type { Doc } from "../document/model";
import {
  fieldsOf,
  isObject,
  type Json,
  type JsonObject,
  listOf,
  parseJson,
  printJson,
  textOf,
  textsOf,
} from "../json";
import type * as messages from "./generated/messages";
import { messageFields } from "./messageFields";

export class Refused extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly answer: JsonObject = {},
  ) {
    super(message);
  }
}

export interface Opened {
  readonly document: Doc;
  readonly notes: readonly string[];
}

export interface Checked {
  readonly error: JsonObject | null;
  readonly nodeErrors: JsonObject;
  /** The ids of nodes with errors, and of the subgraph nodes around them. */
  readonly failing: ReadonlySet<string>;
  readonly notes: readonly string[];
}

export interface Template {
  readonly name: string;
  readonly title: string;
  readonly description: string;
  readonly picture: string;
}

export async function asked(path: string, init?: Asking): Promise<Json> {
  return (await answered(path, init)).answer;
}

/** Request options. The response is not read before `ready` resolves. */
interface Asking extends RequestInit {
  readonly ready?: () => Promise<void>;
}

/** Requests JSON and returns it with the response headers. */
export async function answered(
  path: string,
  { ready, ...init }: Asking = {},
): Promise<{ readonly answer: Json; readonly headers: Headers }> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch {
    throw new Refused("the server does not answer", 0);
  }
  await ready?.();
  const text = await response.text();
  await ready?.(); // reading and parsing a long response are both slow
  let answer: Json = null;
  try {
    answer = text === "" ? null : parseJson(text);
  } catch {
    if (response.ok) throw new Refused("the server's answer is not JSON", response.status);
  }
  if (!response.ok) {
    const wait = response.headers.get("Retry-After");
    const line = refusal(answer, response.status) + (wait ? `; try again in ${wait} s` : "");
    throw new Refused(line, response.status, fieldsOf(answer));
  }
  return { answer, headers: response.headers };
}

function refusal(answer: Json, status: number): string {
  const error = isObject(answer) ? answer.error : undefined;
  if (typeof error === "string") return error;
  if (isObject(error)) {
    const details = textOf(error.details);
    return textOf(error.message) + (details === "" ? "" : `: ${details}`);
  }
  return `the server answered ${status}`;
}

/** Sends the token to the server, which stores it in an HttpOnly cookie. */
export async function giveToken(token: string): Promise<void> {
  await asked("./", { method: "POST", headers: { Authorization: `Bearer ${token.trim()}` } });
}

export function posted(path: string, body: Json, more: Asking = {}): Promise<Json> {
  return asked(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: printJson(body),
    ...more,
  });
}

export async function open(file: Blob): Promise<Opened> {
  const form = new FormData();
  form.append("file", file);
  const answer = await asked("katz/open", { method: "POST", body: form });
  const opened = messageFields<messages.OpenedWorkflow>(answer);
  return { document: fieldsOf(opened.document), notes: textsOf(opened.notes) };
}

export async function template(name: string): Promise<Doc> {
  const answer = await asked(`templates/${encodeURIComponent(name)}.json`);
  return fieldsOf(answer);
}

export async function templates(): Promise<readonly Template[]> {
  const categories = listOf(await asked("templates/index.json")).filter(isObject);
  return categories
    .flatMap((category) => listOf(category.templates).filter(isObject))
    .map((raw) => ({
      name: textOf(raw.name),
      title: textOf(raw.title),
      description: textOf(raw.description),
      picture: `templates/${encodeURIComponent(textOf(raw.name))}-1.webp`,
    }));
}

export function objectInfo(): Promise<Json> {
  return asked("object_info");
}

export async function check(document: Doc): Promise<Checked> {
  return checkedOf(
    await posted("katz/check", { prompt: asPrompt(document) } satisfies messages.PromptBody),
  );
}

/** Overrides of the settings of jobs for a plan; see `PlanBody`. */
export type PlanOverrides = {
  readonly devices?: readonly string[];
  readonly place?: readonly string[];
  readonly allow?: string;
  readonly link?: string;
  readonly batching?: boolean;
};

/** Plans all samplers of a document. A newer request with the same `asker` replaces this one. */
export async function plan(
  document: Doc,
  asker: string,
  instead: PlanOverrides = {},
  more: Asking = {},
): Promise<{
  readonly plans: readonly Json[];
  readonly notes: readonly string[];
  readonly approximations: readonly string[];
}> {
  const asked = { prompt: asPrompt(document), client_id: asker } satisfies messages.PlanBody;
  const planned = messageFields<messages.PlannedWorkflow>(
    await posted("katz/plan", { ...asked, ...instead }, more),
  );
  return {
    plans: listOf(planned.plans),
    notes: textsOf(planned.notes),
    approximations: textsOf(planned.approximations),
  };
}

/** Reads the response of a check or of a refused run. */
export function checkedOf(answer: Json): Checked {
  const found = messageFields<messages.CheckedWorkflow>(answer);
  const nodeErrors = fieldsOf(found.node_errors);
  const failing = Object.keys(nodeErrors).flatMap((id) =>
    id.split(":").map((_, depth, parts) => parts.slice(0, depth + 1).join(":")),
  );
  return {
    error: isObject(found.error) ? found.error : null,
    nodeErrors,
    failing: new Set(failing),
    notes: textsOf(found.notes),
  };
}

export interface QueueOptions {
  readonly front?: boolean;
  /** If set, only these outputs run. */
  readonly targets?: readonly string[];
  /** Overrides of the settings of jobs. */
  readonly instead?: PlanOverrides;
}

/**
 * Queues a document. The page chooses the job's id, so that no event can arrive before it is known.
 */
export async function queue(
  document: Doc,
  job: string,
  client: string,
  { front = false, targets, instead }: QueueOptions,
): Promise<void> {
  await posted("prompt", {
    prompt: asPrompt(document),
    prompt_id: job,
    client_id: client,
    front,
    ...(targets === undefined ? {} : { partial_execution_targets: [...targets] }),
    ...(instead === undefined ? {} : { extra_data: { katz: instead } }),
  } satisfies messages.PromptBody);
}

export async function cancel(job: string): Promise<void> {
  await posted("api/jobs/cancel", { job_ids: [job] } satisfies messages.CancelBody);
}

/** Pauses, resumes or clears the queue. A pause does not stop running jobs. */
export async function steer(what: "pause" | "resume" | "clear"): Promise<void> {
  await posted(`katz/queue/${what}`, {});
}

/** Downloads a file of the server in order to open it. */
export async function fetched(address: string): Promise<File> {
  const response = await fetch(address);
  if (!response.ok) throw new Refused("the file no longer exists", response.status);
  const name = new URL(address, document.baseURI).searchParams.get("filename") ?? "picture.png";
  return new File([await response.blob()], name);
}

export interface StoredPicture {
  readonly filename: string;
  readonly subfolder: string;
  readonly type: string;
}

/**
 * Returns the images of a node's output: `images` or, for comparisons, `a_images` and `b_images`.
 */
export function picturesOf(made: Readonly<Record<string, readonly unknown[]>>): StoredPicture[] {
  return Object.entries(made).flatMap(([name, all]) =>
    /(^|_)images$/.test(name)
      ? (all as readonly Json[]).flatMap((raw) => pictureOf(raw) ?? [])
      : [],
  );
}

function pictureOf(raw: Json): StoredPicture | null {
  if (!isObject(raw) || typeof raw.filename !== "string") return null;
  return {
    filename: raw.filename,
    subfolder: textOf(raw.subfolder),
    type: textOf(raw.type, "output"),
  };
}

/** Parses an image value of LoadImage: `folder/name.png [output]`. */
export function loadedPicture(value: string): StoredPicture {
  const [, path = value, type = "input"] = /^(.*?)(?: \[(input|output|temp)\])?$/.exec(value) ?? [];
  const cut = path.lastIndexOf("/");
  return { filename: path.slice(cut + 1), subfolder: path.slice(0, Math.max(0, cut)), type };
}

export function addressOf(picture: StoredPicture, width = 0): string {
  const query = new URLSearchParams({ ...picture });
  if (width > 0) query.set("width", String(width));
  return `view?${query}`;
}

/** Uploads an image and returns its LoadImage value. */
export async function upload(file: File): Promise<string> {
  const form = new FormData();
  form.append("image", file);
  return storedName(await asked("upload/image", { method: "POST", body: form }));
}

/** Stores a copy of an image with the mask as its alpha, and returns its LoadImage value. */
export async function uploadMask(mask: Blob, original: StoredPicture): Promise<string> {
  const form = new FormData();
  const stem = original.filename.replace(/( mask)?\.\w+$/, "");
  form.append("image", mask, `${stem} mask.png`);
  form.append("original_ref", JSON.stringify(original));
  return storedName(await asked("upload/mask", { method: "POST", body: form }));
}

function storedName(answer: Json): string {
  return textOf(fieldsOf(answer).name);
}
