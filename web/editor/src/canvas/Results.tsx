/** Shows what a node made: its unfinished picture while it works, then pictures and texts. */
import { useEffect, useState } from "react";
import { isIn, outputsInside } from "../jobs/inside";
import type { Picture } from "../jobs/job";
import { addressOf, picturesOf } from "../server/client";
import { useLive } from "../shell/live";
import { usePage } from "../shell/page";

export function Results({ job, node }: { readonly job: string; readonly node: string }) {
  const preview = useLive(({ jobs }) => {
    const shown = jobs.byId[job]?.preview;
    return shown && (shown.node === node || isIn(shown.node, node)) ? shown : null;
  });
  const made = useLive(({ jobs }) => {
    const known = jobs.byId[job];
    return known?.outputs[node] ?? (known && outputsInside(known, node));
  });
  if (preview !== null) return <Preview picture={preview} />;
  const pictures = picturesOf(made ?? {});
  const addresses = pictures.map((picture) => addressOf(picture));
  const texts = ((made?.text ?? []) as readonly unknown[]).map(String);
  return (
    <>
      {pictures.map((picture, at) => (
        <button
          type="button"
          className="result nodrag"
          key={picture.filename}
          onClick={() => usePage.setState({ pictures: { addresses, at } })}
        >
          <img src={addressOf(picture, 512)} alt={picture.filename} loading="lazy" />
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
    const blob = new Blob([picture.image as BlobPart], { type: picture.mediaType });
    const made = URL.createObjectURL(blob);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [picture]);
  return address === "" ? null : <img className="preview" src={address} alt="preview" />;
}
