/** Shows the output of a node: its preview while it runs, then its images and texts. */
import { useEffect, useMemo, useState } from "react";
import { removePreview } from "../../commands/edits/outputPreview";
import { resultOf } from "../../jobs/followed";
import { isIn } from "../../jobs/inside";
import type { Picture } from "../../jobs/job";
import { addressOf, picturesOf } from "../../server/client";
import { docOf, type Peek, useDocuments } from "../../state/documents";
import { useFollowed, useLive } from "../../state/live";
import { usePage } from "../../state/page";
import { workOf } from "../../state/planning";
import { setImageDrag } from "../../ui/imageDrag";

export function Results({ node }: { readonly node: string }) {
  const preview = useFollowed(({ shown }) => {
    const picture = shown?.preview;
    return picture && (picture.node === node || isIn(picture.node, node)) ? picture : null;
  });
  const made = useFollowed((own) => resultOf(own, node));
  if (preview !== null) return <Preview picture={preview} />;
  return made ? <Made made={made} /> : null;
}

/** Shows the peeked value of a node's output. */
export function OutputPreview({ session, node, peek }: PeekedAt) {
  const job = useLive(({ jobs }) => jobs.byId[peek.job]);
  const made = job?.outputs[peek.node];
  const doc = useDocuments(({ sessions }) => {
    const front = sessions.find(({ id }) => id === session);
    return front === undefined ? null : docOf(front);
  });
  const isOld = useMemo(() => doc !== null && workOf(doc) !== peek.work, [doc, peek]);
  const state = job?.error?.message ?? job?.status ?? "job not found";
  return (
    <section className="peek nodrag" aria-label={`peek at ${peek.label}`}>
      <p>
        {peek.label}
        <small>{made === undefined ? state : isOld ? "from an earlier graph" : ""}</small>
        <button type="button" onClick={() => removePreview(session, node)}>
          Close preview
        </button>
      </p>
      <div className={isOld ? "old" : ""}>
        <Made made={made ?? {}} />
      </div>
    </section>
  );
}

interface PeekedAt {
  readonly session: string;
  readonly node: string;
  readonly peek: Peek;
}

function Made({ made }: { readonly made: Readonly<Record<string, readonly unknown[]>> }) {
  const pictures = picturesOf(made);
  const addresses = pictures.map((picture) => addressOf(picture));
  const texts = (made.text ?? []).map(String);
  return (
    <>
      {pictures.map((picture, at) => (
        <button
          type="button"
          className="result nodrag"
          key={picture.filename}
          draggable
          onDragStart={(event) => setImageDrag(event, [addressOf(picture)])}
          onClick={() => usePage.setState({ pictures: { addresses, at } })}
        >
          <img
            draggable={false}
            src={addressOf(picture, 512)}
            alt={picture.filename}
            loading="lazy"
          />
        </button>
      ))}
      {texts.map((text) => (
        <p className="note" key={text}>
          {text}
        </p>
      ))}
    </>
  );
}

function Preview({ picture }: { readonly picture: Picture }) {
  const [address, setAddress] = useState("");
  useEffect(() => {
    // unlike an object URL, a data URL cannot be revoked while the browser still loads it
    const reader = new FileReader();
    reader.onload = () => setAddress(String(reader.result));
    reader.readAsDataURL(new Blob([picture.image as BlobPart], { type: picture.mediaType }));
    return () => reader.abort();
  }, [picture]);
  return address === "" ? null : <img className="preview" src={address} alt="preview" />;
}
