/** Which pictures of the gallery are shown, and by what they can be told apart. Pure. */
import type { ListedFile } from "../server/files";

export interface Wanted {
  /** Words of the file's name or of its workflow's. */
  readonly words: string;
  /** The name of the workflow, and a node's id; "" for any. */
  readonly workflow: string;
  readonly node: string;
}

/** What a workflow is called; by its id. Copies of one workflow may have one name. */
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

/** The names of workflows that files come from, those of the newest files first. */
export function workflowsOf(files: readonly ListedFile[], nameOf: NameOf): readonly string[] {
  return [...new Set(files.map(({ workflow }) => nameOf(workflow)))].filter((one) => one !== "");
}

/** The nodes of a workflow that made files. Nodes of two workflows may have one id. */
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
