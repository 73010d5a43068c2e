/** Stores replaced versions of saved workflows in the user's folder on the server. */
import type { Doc } from "../document/model";
import { printJson } from "../json";
import { answered, open, Refused } from "./client";
import { addressIn, filesBelow, removeFile } from "./workflows";

const FOLDER = "versions/";
const MAX_VERSIONS = 20;

export interface Version {
  readonly path: string;
  /** The time of replacement in milliseconds since the epoch. */
  readonly replaced: number;
}

/** Stores a version and deletes the oldest ones of the file. */
export async function keepVersion(file: string, doc: Doc): Promise<void> {
  const path = `${file}/${Date.now()}.json`;
  await answered(addressIn(FOLDER, path), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: printJson(doc),
  });
  for (const old of (await versionsOf(file)).slice(MAX_VERSIONS))
    await removeFile(addressIn(FOLDER, old.path));
}

/** Returns the stored versions of a file, newest first. */
export async function versionsOf(file: string): Promise<readonly Version[]> {
  const found = (await filesBelow(`${FOLDER}${file}/`)).flatMap(({ path }) => {
    const [, replaced] = /^(\d+)\.json$/.exec(path) ?? [];
    return replaced ? [{ path: `${file}/${path}`, replaced: Number(replaced) }] : [];
  });
  return found.sort((one, other) => other.replaced - one.replaced);
}

/** Moves the versions of a renamed file. */
export async function moveVersions(file: string, to: string): Promise<void> {
  for (const { path } of await versionsOf(file)) {
    const there = encodeURIComponent(FOLDER + to + path.slice(file.length));
    await answered(`${addressIn(FOLDER, path)}/move/${there}`, { method: "POST" });
  }
}

export async function readVersion({ path }: Version): Promise<Doc> {
  const response = await fetch(addressIn(FOLDER, path), { cache: "no-store" });
  if (!response.ok) throw new Refused("the version no longer exists", response.status);
  return (await open(await response.blob())).document;
}
