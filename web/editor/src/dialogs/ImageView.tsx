/**
 * Shows a large image. Arrow keys go to its neighbours, + and − zoom, and its workflow can be
 * opened.
 */
import { useState } from "react";
import { loadPicture } from "../commands/addNode";
import { openFiles } from "../commands/run";
import { fetched } from "../server/client";
import { notify } from "../state/live";
import { type Pictures, usePage } from "../state/page";
import { Modal } from "../ui/Modal";

const FACTOR = 1.25;
const LIMITS = { least: 0.1, most: 16 };
const close = () => usePage.setState({ pictures: null });

export function ImageView({ pictures: { addresses, at } }: { readonly pictures: Pictures }) {
  /** Screen pixels per image pixel; null to fit the image to the dialog. */
  const [zoom, setZoom] = useState<number | null>(null);
  const [natural, setNatural] = useState(0);
  const address = addresses[at] ?? "";
  const name = new URL(address, document.baseURI).searchParams.get("filename") ?? "";
  const go = (step: number) => {
    const next = at + step;
    if (addresses[next] !== undefined) usePage.setState({ pictures: { addresses, at: next } });
  };
  const scale = (factor: number) =>
    setZoom((now) => Math.min(LIMITS.most, Math.max(LIMITS.least, (now ?? 1) * factor)));
  const keys: Readonly<Record<string, () => void>> = {
    ArrowLeft: () => go(-1),
    ArrowRight: () => go(1),
    "+": () => scale(FACTOR),
    "-": () => scale(1 / FACTOR),
    "0": () => setZoom(1),
    ".": () => setZoom(null),
  };
  return (
    <Modal label={name || "Picture"} onClose={close}>
      <div
        className="large"
        tabIndex={0}
        role="group"
        aria-label="arrows: other pictures; +, −, 0, .: zoom"
        onKeyDown={(event) => {
          const act = keys[event.key];
          if (act === undefined) return;
          event.preventDefault();
          event.stopPropagation();
          act();
        }}
      >
        <img
          className={zoom === null ? "fits" : ""}
          style={zoom === null || natural === 0 ? undefined : { width: natural * zoom }}
          src={address}
          alt={name}
          onLoad={(event) => setNatural(event.currentTarget.naturalWidth)}
          onClick={() => setZoom((now) => (now === null ? 1 : null))}
        />
      </div>
      <p className="steering">
        <button type="button" disabled={at === 0} onClick={() => go(-1)}>
          ← Newer
        </button>
        <button type="button" disabled={at + 1 >= addresses.length} onClick={() => go(1)}>
          Older →
        </button>
        <button
          type="button"
          disabled={at + 1 >= addresses.length}
          onClick={() => {
            close();
            usePage.setState({ compared: [addresses[at + 1] ?? "", address] });
          }}
        >
          Compare with previous one
        </button>
        <span>{zoom === null ? "fitted" : `${Math.round(100 * zoom)} %`}</span>
        <button
          type="button"
          onClick={() => {
            close();
            fetched(address).then((file) => openFiles([file]), notify);
          }}
        >
          Open the workflow
        </button>
        <button
          type="button"
          onClick={() => {
            close();
            loadPicture(address);
          }}
        >
          Use as input
        </button>
        <a href={address} download={name}>
          Download
        </a>
      </p>
    </Modal>
  );
}
