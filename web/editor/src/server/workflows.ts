/** Keeps workflows in the person's folder on the server. Nothing is overwritten unasked. */
import type { Doc } from "../document/model";
import { isObject, type Json, listOf, numberFrom, printJson, textOf } from "../json";
import { asked, type Opened, open, Refused } from "./client";

export interface StoredWorkflow {
  /** Below the folder of workflows, with its ending. */
  readonly path: string;
  /** Milliseconds since the epoch: which version of the file it is. */
  readonly modified: number;
}

/** The file was changed by somebody else since it was read. */
export class Conflict extends Error {
  constructor(readonly theirs: StoredWorkflow) {
    super(`${theirs.path} was changed on the server since it was opened here`);
  }
}

const FOLDER = "workflows";
const TRASH = ".trash";
const MISSING = 404;
const EXISTS = 409;

export async function storedWorkflows(): Promise<readonly StoredWorkflow[]> {
  const query = new URLSearchParams({ dir: FOLDER, recurse: "true", full_info: "true" });
  try {
    return listOf(await asked(`userdata?${query}`))
      .map(storedOf)
      .filter(({ path }) => path.endsWith(".json") && !path.startsWith(`${TRASH}/`));
  } catch (error) {
    if (error instanceof Refused && error.status === MISSING) return []; // nothing was ever saved
    throw error;
  }
}

export async function readWorkflow(
  path: string,
): Promise<Opened & { readonly file: StoredWorkflow }> {
  const file = (await storedWorkflows()).find((one) => one.path === path);
  const response = await fetch(addressOf(path));
  if (file === undefined || !response.ok)
    throw new Refused(`${path} is not there any more`, MISSING);
  return { ...(await open(await response.blob())), file };
}

/** `replaces`: the version that may be overwritten; null for a new file. Raises Conflict. */
export async function storeWorkflow(
  path: string,
  doc: Doc,
  replaces: StoredWorkflow | null,
): Promise<StoredWorkflow> {
  const theirs = (await storedWorkflows()).find((one) => one.path === path);
  if (theirs !== undefined && theirs.modified !== replaces?.modified) throw new Conflict(theirs);
  const overwrite = String(theirs !== undefined);
  try {
    return storedOf(
      await asked(`${addressOf(path)}?${new URLSearchParams({ overwrite, full_info: "true" })}`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: printJson(doc, 2),
      }),
    );
  } catch (error) {
    if (error instanceof Refused && error.status === EXISTS) {
      const now = (await storedWorkflows()).find((one) => one.path === path);
      if (now !== undefined) throw new Conflict(now);
    }
    throw error;
  }
}

export async function moveWorkflow(path: string, to: string): Promise<StoredWorkflow> {
  const query = new URLSearchParams({ overwrite: "false", full_info: "true" });
  const there = encodeURIComponent(`${FOLDER}/${to}`);
  return storedOf(await asked(`${addressOf(path)}/move/${there}?${query}`, { method: "POST" }));
}

/** Moves a file to the trash, where it stays under its name and the time. */
export async function trashWorkflow(path: string): Promise<void> {
  await moveWorkflow(path, `${TRASH}/${Date.now()} ${path.replaceAll("/", " ")}`);
}

function addressOf(path: string): string {
  return `userdata/${encodeURIComponent(`${FOLDER}/${path}`)}`;
}

function storedOf(raw: Json): StoredWorkflow {
  const told = isObject(raw) ? raw : {};
  const path = textOf(told.path);
  const below = path.startsWith(`${FOLDER}/`) ? path.slice(FOLDER.length + 1) : path;
  return { path: below, modified: numberFrom(told.modified) };
}
