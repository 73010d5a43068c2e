/** Stores unsaved documents in the user's folder on the server, one file each. */
import type { Doc } from "../document/model";
import { fieldsOf, isObject, parseJson, printJson, textOf } from "../json";
import { answered, type Opened, open, Refused } from "./client";
import {
  addressIn,
  removeFile,
  filesBelow,
  type ListedWorkflow,
  type StoredWorkflow,
} from "./workflows";

const FOLDER = "drafts/";
const MAX_DRAFTS = 30;
const MAX_NAME_CHARACTERS = 60;
/** Browsers complete requests of a closing page only up to 64 kB. */
const MAX_KEEPALIVE_BYTES = 60_000;
const OTHER_VERSION = 412;

export interface Draft {
  readonly name: string;
  readonly doc: Doc;
  /** The saved file of the document, and the version on which the draft is based. */
  readonly file: StoredWorkflow | null;
}

/** Returns the stored drafts, newest first. */
export async function storedDrafts(): Promise<readonly ListedWorkflow[]> {
  const all = await filesBelow(FOLDER);
  return [...all].sort((one, other) => other.modified - one.modified);
}

/** Returns the document name of a draft. */
export function draftName(path: string): string {
  return path.replace(/ [0-9a-f]{8}\.json$/, "");
}

/** Stores a draft over its known version. If another page has changed that, stores a new draft. */
export async function storeDraft(
  draft: Draft,
  known: StoredWorkflow | null,
): Promise<StoredWorkflow> {
  const place = known ?? { path: pathFor(draft.name), version: "" };
  const body = printJson({
    file: draft.file && { path: draft.file.path, version: draft.file.version },
    document: draft.doc,
  });
  const only: Record<string, string> =
    place.version === "" ? { "If-None-Match": "*" } : { "If-Match": place.version };
  try {
    const { headers } = await answered(addressOf(place.path), {
      method: "POST",
      headers: { "Content-Type": "application/json", ...only },
      body,
      keepalive: body.length < MAX_KEEPALIVE_BYTES,
    });
    if (known === null) await forgetOldest();
    return { path: place.path, version: headers.get("ETag") ?? "" };
  } catch (error) {
    const changed = error instanceof Refused && error.status === OTHER_VERSION;
    if (!changed || known === null) throw error;
    return storeDraft(draft, null);
  }
}

export async function readDraft(
  path: string,
): Promise<Opened & { readonly file: StoredWorkflow | null; readonly draft: StoredWorkflow }> {
  const response = await fetch(addressOf(path), { cache: "no-store" });
  if (!response.ok) throw new Refused("the draft no longer exists", response.status);
  const stored = fieldsOf(parseJson(await response.text()));
  const file = isObject(stored.file)
    ? { path: textOf(stored.file.path), version: textOf(stored.file.version) }
    : null;
  const document = new Blob([printJson(stored.document ?? null)], { type: "application/json" });
  const draft = { path, version: response.headers.get("ETag") ?? "" };
  return { ...(await open(document)), file, draft };
}

/** Deletes a draft; with a version, only if it is unchanged. */
export async function forgetDraft({ path, version }: StoredWorkflow): Promise<void> {
  await removeFile(addressOf(path), version);
}

async function forgetOldest(): Promise<void> {
  const old = (await storedDrafts()).slice(MAX_DRAFTS);
  for (const { path } of old) await forgetDraft({ path, version: "" });
}

/** Returns a unique file name that every file system accepts. */
function pathFor(name: string): string {
  const plain = name.replace(/[^\p{L}\p{N} _-]+/gu, " ").trim();
  const short = [...plain].slice(0, MAX_NAME_CHARACTERS).join("").trim() || "workflow";
  return `${short} ${crypto.randomUUID().slice(0, 8)}.json`;
}

function addressOf(path: string): string {
  return addressIn(FOLDER, path);
}
