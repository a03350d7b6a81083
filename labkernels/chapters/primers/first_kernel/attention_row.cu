// One row of attention: a thread stands for a key of the KV tile, and then for a channel.
// Scores are powers of two: 2^s in place of e^s.
__global__ void attend(const float* q, const float* k, const float* v, float* out, int keys) {
  __shared__ float s[2];
  int t = threadIdx.x;
  float m = -1e30f, l = 0, o = 0;
  for (int first = 0; first < keys; first += 2) {
    int key = first + t;
    s[t] = q[0] * k[2 * key] + q[1] * k[2 * key + 1];
    __syncthreads();  // both scores are there
    float m_new = fmaxf(m, fmaxf(s[0], s[1])), rescale = exp2f(m - m_new);
    float p0 = exp2f(s[0] - m_new), p1 = exp2f(s[1] - m_new);
    l = rescale * l + p0 + p1;
    o = rescale * o + p0 * v[2 * first + t] + p1 * v[2 * first + 2 + t];
    m = m_new;
    __syncthreads();  // no thread reads these scores any more
  }
  out[t] = o / l;
}
