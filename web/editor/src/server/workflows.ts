/** Stores workflows in the user's folder on the server. Files are overwritten only on request. */
import type { Doc } from "../document/model";
import { isObject, listOf, numberFrom, printJson, textOf } from "../json";
import { answered, asked, type Opened, open, Refused } from "./client";

/** A listed workflow: its path below the workflow folder, and its modification time. */
export interface ListedWorkflow {
  readonly path: string;
  /** Seconds since the epoch. */
  readonly modified: number;
}

/** A file as read or written, with the ETag of that version. */
export interface StoredWorkflow {
  readonly path: string;
  readonly version: string;
}

/** Another page has changed the file since it was read. `theirs`: its current version. */
export class Conflict extends Error {
  constructor(
    readonly theirs: StoredWorkflow,
    readonly saved: string,
  ) {
    super(`${theirs.path} was changed on the server since it was opened here`);
  }
}

const FOLDER = "workflows/";
const TRASH = ".trash/";
const MISSING = 404;
const OTHER_VERSION = 412;

export async function storedWorkflows(): Promise<readonly ListedWorkflow[]> {
  const all = await filesBelow(FOLDER);
  return all.filter(({ path }) => !path.startsWith(TRASH));
}

/** Returns the user's JSON files below a folder, with paths relative to it. */
export async function filesBelow(folder: string): Promise<readonly ListedWorkflow[]> {
  return listOf(await asked("v2/userdata"))
    .filter(isObject)
    .map((file) => ({ path: textOf(file.path), modified: numberFrom(file.modified) }))
    .filter(({ path }) => path.startsWith(folder) && path.endsWith(".json"))
    .map((one) => ({ ...one, path: one.path.slice(folder.length) }));
}

export async function readWorkflow(
  path: string,
): Promise<Opened & { readonly file: StoredWorkflow }> {
  const response = await fetch(addressOf(path), { cache: "no-store" });
  if (!response.ok) throw new Refused(`${path} no longer exists`, MISSING);
  const file = { path, version: response.headers.get("ETag") ?? "" };
  return { ...(await open(await response.blob())), file };
}

/** `replaces`: the version to overwrite; null for a new file. Throws `Conflict`. */
export async function storeWorkflow(
  path: string,
  doc: Doc,
  replaces: StoredWorkflow | null,
): Promise<StoredWorkflow> {
  const only: Record<string, string> =
    replaces === null ? { "If-None-Match": "*" } : { "If-Match": replaces.version };
  try {
    const { headers } = await answered(addressOf(path), {
      method: "POST",
      headers: { "Content-Type": "application/json", ...only },
      body: printJson(doc, 2),
    });
    return { path, version: headers.get("ETag") ?? "" };
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== OTHER_VERSION) throw error;
  }
  const there = await fetch(addressOf(path), { cache: "no-store" });
  await there.body?.cancel();
  if (there.status === MISSING) return storeWorkflow(path, doc, null); // deleted: no change is lost
  throw new Conflict(
    { path, version: there.headers.get("ETag") ?? "" },
    there.headers.get("Last-Modified") ?? "",
  );
}

export async function moveWorkflow(path: string, to: string): Promise<StoredWorkflow> {
  const there = encodeURIComponent(FOLDER + to);
  const { headers } = await answered(`${addressOf(path)}/move/${there}?overwrite=false`, {
    method: "POST",
  });
  return { path: to, version: headers.get("ETag") ?? "" };
}

/** Moves a file to the trash, named by time and path. */
export async function trashWorkflow(path: string): Promise<void> {
  await moveWorkflow(path, `${TRASH}${Date.now()} ${path.replaceAll("/", " ")}`);
}

function addressOf(path: string): string {
  return addressIn(FOLDER, path);
}

/**
 * Deletes a file; with a version, only if it is unchanged. A missing or changed file is no error.
 */
export async function removeFile(address: string, version = ""): Promise<void> {
  try {
    await answered(address, {
      method: "DELETE",
      headers: version === "" ? {} : { "If-Match": version },
    });
  } catch (error) {
    const settled = error instanceof Refused && [OTHER_VERSION, MISSING].includes(error.status);
    if (!settled) throw error;
  }
}

/** Returns the address of a file in the user's folder. */
export function addressIn(folder: string, path: string): string {
  return `userdata/${encodeURIComponent(folder + path)}`;
}
