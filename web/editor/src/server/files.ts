/** Asks for people's pictures: page by page, the newest first. */
import { fieldsOf, isObject, listOf, numberFrom, textOf } from "../json";
import { addressOf, asked } from "./client";

export interface ListedFile {
  readonly name: string;
  readonly type: "input" | "output";
  /** Seconds since the epoch. */
  readonly modified: number;
  readonly pixels: string;
  /** The job that wrote it, where that is known. */
  readonly job: string;
  /** The document that it was run from, by its id, and the node that shows it; "" where unknown. */
  readonly workflow: string;
  readonly node: string;
}

export interface FilePage {
  readonly files: readonly ListedFile[];
  /** Where the next page begins; null at the end. */
  readonly next: string | null;
}

export async function listedFiles(type: ListedFile["type"], after: string): Promise<FilePage> {
  const told = fieldsOf(
    await asked(`katz/files?${new URLSearchParams({ type, after, limit: "100" })}`),
  );
  return {
    files: listOf(told.files)
      .filter(isObject)
      .map((raw) => ({
        name: textOf(raw.name),
        type,
        modified: numberFrom(raw.modified),
        pixels: typeof raw.width === "number" ? `${raw.width} × ${String(raw.height)}` : "",
        job: textOf(raw.job),
        workflow: textOf(raw.workflow),
        node: textOf(raw.node).split(".")[0] ?? "",
      })),
    next: textOf(told.next) || null,
  };
}

export function pictureAddress({ name, type }: ListedFile, width = 0): string {
  return addressOf({ filename: name, subfolder: "", type }, width);
}
