/** Filters the images of the gallery, and lists the filter values. Pure. */
import type { ListedFile } from "../../server/files";

export interface Wanted {
  /** A part of the file's name or of its workflow's name. */
  readonly words: string;
  /** The name of the workflow and the id of a node; "" for any. */
  readonly workflow: string;
  readonly node: string;
}

/** Returns the name of a workflow by its id. Copies of a workflow may share a name. */
export type NameOf = (workflow: string) => string;

export function shownFiles(
  files: readonly ListedFile[],
  { words, workflow, node }: Wanted,
  nameOf: NameOf,
): readonly ListedFile[] {
  const text = words.toLowerCase();
  return files.filter((file) => {
    const name = nameOf(file.workflow);
    return (
      (workflow === "" || name === workflow) &&
      (node === "" || file.node === node) &&
      `${file.name} ${name}`.toLowerCase().includes(text)
    );
  });
}

/** Returns the names of the files' workflows, in the order of the newest file. */
export function workflowsOf(files: readonly ListedFile[], nameOf: NameOf): readonly string[] {
  return [...new Set(files.map(({ workflow }) => nameOf(workflow)))].filter((one) => one !== "");
}

/**
 * Returns the nodes of a workflow that wrote files. Nodes of different workflows may share an id.
 */
export function nodesIn(
  files: readonly ListedFile[],
  workflow: string,
  nameOf: NameOf,
): readonly string[] {
  const own = files.filter((file) => file.node !== "" && nameOf(file.workflow) === workflow);
  return [...new Set(own.map(({ node }) => node))].sort((one, other) =>
    one.localeCompare(other, "en", { numeric: true }),
  );
}
