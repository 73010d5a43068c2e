/** Lists the user's images page by page, newest first. */
import { numberFrom, textOf } from "../json";
import { addressOf, asked, posted } from "./client";
import type * as messages from "./generated/messages";
import { messageFields, readMessages } from "./messageFields";

export interface ListedFile {
  readonly name: string;
  readonly type: "input" | "output";
  /** Seconds since the epoch. */
  readonly modified: number;
  readonly pixels: string;
  /** The job that wrote the file, or "". */
  readonly job: string;
  /** The id of the document, and of the node that shows the file; "" if unknown. */
  readonly workflow: string;
  readonly node: string;
}

export interface FilePage {
  readonly files: readonly ListedFile[];
  /** The start of the next page; null at the end. */
  readonly next: string | null;
}

export async function listedFiles(type: ListedFile["type"], after: string): Promise<FilePage> {
  const page = messageFields<messages.FilePage>(
    await asked(`katz/files?${new URLSearchParams({ type, after, limit: "100" })}`),
  );
  return {
    files: readMessages<messages.ListedFile, ListedFile>(page.files, (file) => ({
      name: textOf(file.name),
      type,
      modified: numberFrom(file.modified),
      pixels: typeof file.width === "number" ? `${file.width} × ${String(file.height)}` : "",
      job: textOf(file.job),
      workflow: textOf(file.workflow),
      node: textOf(file.node).split(".")[0] ?? "",
    })),
    next: textOf(page.next) || null,
  };
}

export function pictureAddress({ name, type }: ListedFile, width = 0): string {
  return addressOf({ filename: name, subfolder: "", type }, width);
}

/** Moves files to the trash or back, and returns their new names. */
export async function movedFiles(
  how: "trash" | "restore",
  type: ListedFile["type"],
  names: readonly string[],
): Promise<readonly string[]> {
  const body: messages.FilesBody = { names: [...names], type };
  const moved = messageFields<messages.MovedFiles>(await posted(`katz/files/${how}`, { ...body }));
  return readMessages<messages.MovedFile, string>(moved.files, ({ now }) => textOf(now));
}
