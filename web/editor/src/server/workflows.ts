/** Keeps workflows in the person's folder on the server. Nothing is overwritten unasked. */
import type { Doc } from "../document/model";
import { isObject, listOf, numberFrom, printJson, textOf } from "../json";
import { answered, asked, type Opened, open, Refused } from "./client";

/** A workflow as it is listed: its path below the folder of workflows, and when it changed. */
export interface ListedWorkflow {
  readonly path: string;
  /** Seconds since the epoch. */
  readonly modified: number;
}

/** A file that was read or written, with the ETag of the version that this was. */
export interface StoredWorkflow {
  readonly path: string;
  readonly version: string;
}

/** The file was changed by somebody else since it was read. `theirs`: as it is now. */
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

/** The person's files below a folder, named from it on. */
export async function filesBelow(folder: string): Promise<readonly ListedWorkflow[]> {
  return listOf(await asked("v2/userdata"))
    .filter(isObject)
    .map((told) => ({ path: textOf(told.path), modified: numberFrom(told.modified) }))
    .filter(({ path }) => path.startsWith(folder) && path.endsWith(".json"))
    .map((one) => ({ ...one, path: one.path.slice(folder.length) }));
}

export async function readWorkflow(
  path: string,
): Promise<Opened & { readonly file: StoredWorkflow }> {
  const response = await fetch(addressOf(path), { cache: "no-store" });
  if (!response.ok) throw new Refused(`${path} is not there any more`, MISSING);
  const file = { path, version: response.headers.get("ETag") ?? "" };
  return { ...(await open(await response.blob())), file };
}

/** `replaces`: the version that may be overwritten; null for a new file. Raises Conflict. */
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
  if (there.status === MISSING) return storeWorkflow(path, doc, null); // nobody's change is lost
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

/** Moves a file to the trash, where it stays under its name and the time. */
export async function trashWorkflow(path: string): Promise<void> {
  await moveWorkflow(path, `${TRASH}${Date.now()} ${path.replaceAll("/", " ")}`);
}

function addressOf(path: string): string {
  return addressIn(FOLDER, path);
}

/** Removes a file; with a version only this one. What is gone or was changed meanwhile is no error. */
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

/** The address of a file of the person's, below a folder. */
export function addressIn(folder: string, path: string): string {
  return `userdata/${encodeURIComponent(folder + path)}`;
}
