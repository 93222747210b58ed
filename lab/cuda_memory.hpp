// Device memory, streams and events that free themselves. A failure to free is not an error here:
// it follows another one that was already reported.
#pragma once

#include <cstdint>

#include "lab/cuda_call.hpp"

namespace ninefold::lab {

class device_buffer {
 public:
  device_buffer() = default;
  explicit device_buffer(int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) NF_CUDA_CALL(cudaMalloc(&data_, static_cast<size_t>(bytes)));
  }
  device_buffer(device_buffer&& other) noexcept { *this = static_cast<device_buffer&&>(other); }
  device_buffer& operator=(device_buffer&& other) noexcept {
    if (this == &other) return *this;
    if (data_) cudaFree(data_);
    data_ = other.data_;
    bytes_ = other.bytes_;
    other.data_ = nullptr;
    other.bytes_ = 0;
    return *this;
  }
  ~device_buffer() {
    if (data_) cudaFree(data_);
  }
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

class device_stream {
 public:
  device_stream() { NF_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  device_stream(const device_stream&) = delete;
  device_stream& operator=(const device_stream&) = delete;
  ~device_stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class device_event {
 public:
  device_event() { NF_CUDA_CALL(cudaEventCreate(&event_)); }
  device_event(const device_event&) = delete;
  device_event& operator=(const device_event&) = delete;
  ~device_event() { cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace ninefold::lab
