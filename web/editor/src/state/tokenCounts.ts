/** Requests the token counts of the active document's prompts, as they would be sent. */
import { withChosenPrompts } from "../catalog/prompts";
import type { Doc } from "../document/model";
import { changeAll } from "../document/scope";
import { textSizes } from "../server/tokenCounts";
import { activeSession, docOf, useDocuments } from "./documents";
import { useLive } from "./live";
import { workOf } from "./planning";

const DEBOUNCE_MS = 250;

/**
 * Counts shortly after the last change; a newer change cancels a request. Of `{a|b}`, counts `a`.
 */
export function watchTokenCounts(): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let asking: AbortController | undefined;
  let seen: Doc | null = null;
  let known = "";
  const count = async (id: string, doc: Doc): Promise<void> => {
    const { catalog } = useLive.getState();
    const work = `${id} ${workOf(doc)}`;
    if (work === known) return;
    known = work;
    asking?.abort();
    const { signal } = (asking = new AbortController());
    const sent = changeAll(doc, (graph) => withChosenPrompts(graph, catalog, () => 0));
    try {
      useDocuments.getState().update(id, { texts: await textSizes(sent, signal) });
    } catch {
      if (!signal.aborted) known = ""; // the page shows a lost connection already
    }
  };
  const look = () => {
    const session = activeSession();
    const doc = session === null ? null : docOf(session);
    if (session === null || doc === null || doc === seen || useLive.getState().catalog.size === 0)
      return;
    seen = doc;
    clearTimeout(timer);
    timer = setTimeout(() => void count(session.id, doc), DEBOUNCE_MS);
  };
  const ends = [useDocuments.subscribe(look), useLive.subscribe(look)];
  return () => {
    clearTimeout(timer);
    asking?.abort();
    for (const end of ends) end();
  };
}
