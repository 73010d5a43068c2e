import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const SERVER = "http://127.0.0.1:8188";

// Names of files are fixed, so that a build can be compared with the committed one.
export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    sourcemap: false,
    modulePreload: false,
    assetsInlineLimit: 0,
    // the first that know light-dark(): what stands in for it does not heed a theme that was chosen
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
  test: { include: ["src/**/*.test.ts"] },
  server: { proxy: { "^/(api|ws|view|templates)": { target: SERVER, ws: true } } },
});
