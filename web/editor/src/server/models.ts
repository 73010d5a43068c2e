/** Lists the server's models. */
import { fieldsOf, isObject, listOf, numberFrom, textOf, textsOf } from "../json";
import type { Kind } from "../prompts/completion";
import { asked } from "./client";

/** Returns model names as used in prompts, without file extensions. */
export async function namesOf(kind: Kind): Promise<readonly string[]> {
  if (kind === "embeddings") return textsOf(await asked("embeddings"));
  return textsOf(await asked(`models/${kind}`)).map((name) => name.replace(/\.\w+$/, ""));
}

export interface ModelKind {
  readonly name: string;
  /** The names of its folders, current and legacy. */
  readonly folders: readonly string[];
}

export interface Model {
  readonly name: string;
  readonly bytes: number;
  /** The address of the preview image; "" without one. */
  readonly picture: string;
}

export async function modelKinds(): Promise<readonly ModelKind[]> {
  return listOf(await asked("experiment/models"))
    .filter(isObject)
    .map((entry) => ({ name: textOf(entry.name), folders: textsOf(entry.folders) }));
}

export async function listedModels(kind: string): Promise<readonly Model[]> {
  return listOf(await asked(`experiment/models/${encodeURIComponent(kind)}`))
    .filter(isObject)
    .map((entry) => {
      const name = textOf(entry.name);
      const path = name.split("/").map(encodeURIComponent).join("/");
      const place = `${encodeURIComponent(kind)}/${numberFrom(entry.pathIndex)}/${path}`;
      return {
        name,
        bytes: numberFrom(entry.size),
        picture: entry.has_preview === true ? `experiment/models/preview/${place}` : "",
      };
    });
}

/** Returns the metadata in a model's file; empty without any. */
export async function notesOf(
  kind: string,
  name: string,
): Promise<Readonly<Record<string, string>>> {
  const query = new URLSearchParams({ filename: name });
  const notes = await asked(`view_metadata/${encodeURIComponent(kind)}?${query}`).catch(() => null);
  return Object.fromEntries(
    Object.entries(fieldsOf(notes)).map(([key, text]) => [key, textOf(text)]),
  );
}
