/** Lists earlier versions of the active file, shows the changes since, and restores one. */
import { useEffect, useState } from "react";
import { difference } from "../catalog/difference";
import type { Doc } from "../document/model";
import { readVersion, type Version, versionsOf } from "../server/versions";
import { docOf, useActive, useDocuments } from "../state/documents";
import { notify, useLive } from "../state/live";
import { Modal } from "../ui/Modal";

export function Versions({ onClose }: { readonly onClose: () => void }) {
  const session = useActive();
  const saved = session?.file ?? null; // a new object after each save: reloads the list
  const file = saved?.path ?? null;
  const [versions, setVersions] = useState<readonly Version[] | null>(null);
  const [chosen, setChosen] = useState<{ version: Version; doc: Doc } | null>(null);
  useEffect(() => {
    if (saved === null) return;
    let newest = true;
    versionsOf(saved.path).then((found) => newest && setVersions(found), notify);
    return () => {
      newest = false;
    };
  }, [saved]);
  if (session === null) return null;
  const choose = (version: Version) =>
    readVersion(version).then((doc) => setChosen({ version, doc }), notify);
  return (
    <Modal label="Earlier versions" onClose={onClose}>
      {file === null && (
        <p>Save the document first. Each later save keeps the version it replaces.</p>
      )}
      {versions?.length === 0 && <p>No earlier version of {file} is kept yet.</p>}
      <div className="versions">
        <ul aria-label="versions">
          {versions?.map((version) => (
            <li key={version.path}>
              <button
                type="button"
                aria-pressed={chosen?.version === version}
                onClick={() => void choose(version)}
              >
                until {new Date(version.replaced).toLocaleString()}
              </button>
            </li>
          ))}
        </ul>
        {chosen !== null && (
          <section aria-label="changes">
            <Changes before={chosen.doc} after={docOf(session)} />
            <button
              type="button"
              className="prominent"
              onClick={() => {
                const { changeDocument } = useDocuments.getState();
                changeDocument(session.id, "restore a version", () => chosen.doc);
                onClose();
              }}
            >
              Restore
            </button>
            <button
              type="button"
              onClick={() => {
                useDocuments.getState().open(`${session.name}, earlier`, chosen.doc);
                onClose();
              }}
            >
              Open in a new tab
            </button>
          </section>
        )}
      </div>
    </Modal>
  );
}

const SIGNS = { added: "+", removed: "−", changed: "≠" };

function Changes({ before, after }: { readonly before: Doc; readonly after: Doc }) {
  const catalog = useLive((live) => live.catalog);
  const found = difference(before, after, catalog);
  if (found.length === 0) return <p>No changes.</p>;
  return (
    <ul className="changes">
      {found.map(({ inside, id, title, kind, lines }) => (
        <li key={`${inside} ${kind} ${id}`} className={kind}>
          <b>
            {SIGNS[kind]} {inside === "" ? title : `${inside} › ${title}`}
          </b>
          {lines.map((line) => (
            <p key={line}>{line}</p>
          ))}
        </li>
      ))}
    </ul>
  );
}
