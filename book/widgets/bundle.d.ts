// What the bundle that labkernels.widgets.program writes has besides the modules.
declare const lab_bundle: () => { begin: () => void };
declare const lab_compiler_bytes: number;
declare const lab_data: {
  offers: import("./run_kernel.mjs").Offer[];
  steps: { kernel: string; asset: string }[];
  writing: { mb: number; prompt: string };
};
// The editor; its types lie in packages that a check of types does without.
declare module "@codemirror/*";
declare module "@lezer/highlight";
