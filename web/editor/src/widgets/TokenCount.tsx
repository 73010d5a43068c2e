/** Shows the number of tokens of a prompt for the text encoders that read it. */
import { sizeText } from "../catalog/prompts";
import { useDocuments } from "../state/documents";

export function TokenCount({ node, widget }: { readonly node: string; readonly widget: string }) {
  const words = useDocuments(({ sessions, active }) => {
    const session = sessions.find(({ id }) => id === active);
    return sizeText(session?.texts[[...session.path, node].join(":")]?.[widget] ?? []);
  });
  return words === "" ? null : <small className="tokens">{words}</small>;
}
