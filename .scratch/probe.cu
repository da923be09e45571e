#include <cuda_runtime.h>
#include <sys/mman.h>
#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <chrono>
#include <thread>
#include <vector>
#define C(x) do { cudaError_t e=(x); if(e){printf("%s: %s line %d\n",#x,cudaGetErrorString(e),__LINE__);exit(1);} } while(0)
static double now(){return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();}
__global__ void copy_ld(const uint4* from, uint4* to, long n, int unroll){
  long stride=(long)gridDim.x*blockDim.x;
  for(long i=(long)blockIdx.x*blockDim.x+threadIdx.x;i<n;i+=4*stride){
    uint4 v[4];
    #pragma unroll
    for(int j=0;j<4;++j) if(i+j*stride<n) asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];":"=r"(v[j].x),"=r"(v[j].y),"=r"(v[j].z),"=r"(v[j].w):"l"(from+i+j*stride));
    #pragma unroll
    for(int j=0;j<4;++j) if(i+j*stride<n) to[i+j*stride]=v[j];
  }
}
// bulk copies host -> shared -> device
__global__ void copy_bulk(const uint8_t* from, uint8_t* to, long pieces, int bytes, int sum_only){
  extern __shared__ __align__(128) uint8_t sm[];
  __shared__ __align__(8) uint64_t bar[8];
  const int S=4;
  uint32_t base=(uint32_t)__cvta_generic_to_shared(sm), b=(uint32_t)__cvta_generic_to_shared(bar);
  if(threadIdx.x==0){ for(int i=0;i<S;++i) asm volatile("mbarrier.init.shared.b64 [%0],1;"::"r"(b+8*i));
    asm volatile("fence.mbarrier_init.release.cluster;");
    long mine=0; for(long p=blockIdx.x;p<pieces;p+=gridDim.x) ++mine;
    auto fetch=[&](long k){ if(k>=mine) return; uint32_t s=k%S; 
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;"::"r"(b+8*s),"r"(bytes));
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];"::"r"(base+s*bytes),"l"(from+(blockIdx.x+k*gridDim.x)*(long)bytes),"r"(bytes),"r"(b+8*s):"memory");};
    for(long k=0;k<S;++k) fetch(k);
    for(long k=0;k<mine;++k){ uint32_t s=k%S, ph=(k/S)&1, done=0;
      while(!done) asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p,[%1],%2; selp.u32 %0,1,0,p;}":"=r"(done):"r"(b+8*s),"r"(ph):"memory");
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0],[%1],%2;"::"l"(to+(blockIdx.x+k*gridDim.x)*(long)bytes),"r"(base+s*bytes),"r"(bytes):"memory");
      asm volatile("cp.async.bulk.commit_group;"); asm volatile("cp.async.bulk.wait_group.read 0;":::"memory");
      fetch(k+S);
    }
    asm volatile("cp.async.bulk.wait_group 0;":::"memory");
  }
}
int main(){
  size_t f,t; C(cudaFree(0)); C(cudaMemGetInfo(&f,&t)); printf("after context: free %.2f of %.2f GB, in use %.0f MB\n",f/1e9,t/1e9,(t-f)/1e6);
  const long N=4l<<30;
  double a=now(); uint8_t* h; C(cudaHostAlloc(&h,N,cudaHostAllocPortable|cudaHostAllocMapped)); printf("cudaHostAlloc 4 GiB: %.2f s\n",now()-a);
  a=now(); for(long i=0;i<N;i+=8) *(uint64_t*)(h+i)=i*0x9E3779B97F4A7C15ull; printf("fill %.2f s\n",now()-a);
  a=now(); uint8_t* m=(uint8_t*)mmap(0,N,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0); madvise(m,N,MADV_HUGEPAGE);
  {std::vector<std::thread> th; for(int k=0;k<16;++k) th.emplace_back([=]{for(long i=k*(N/16);i<(k+1)*(N/16);i+=4096) m[i]=1;}); for(auto&x:th) x.join();}
  double b=now(); cudaError_t e=cudaHostRegister(m,N,cudaHostRegisterPortable|cudaHostRegisterMapped); printf("mmap+touch 16 threads %.2f s, register %.2f s: %s\n",b-a,now()-b,cudaGetErrorString(e));
  uint8_t* d; C(cudaMalloc(&d,N));
  cudaEvent_t e0,e1; cudaEventCreate(&e0); cudaEventCreate(&e1); float ms;
  auto rate=[&](const char* what, auto go){ go(); C(cudaDeviceSynchronize()); cudaEventRecord(e0); go(); cudaEventRecord(e1); C(cudaEventSynchronize(e1)); cudaEventElapsedTime(&ms,e0,e1); C(cudaGetLastError()); printf("%-44s %.2f GB/s\n",what,(double)(1l<<30)/ms*1e-6); };
  const long n=1l<<30;
  rate("memcpy h2d", [&]{cudaMemcpyAsync(d,h,n,cudaMemcpyHostToDevice);});
  rate("memcpy h2d registered THP", [&]{cudaMemcpyAsync(d,m,n,cudaMemcpyHostToDevice);});
  rate("memcpy d2h", [&]{cudaMemcpyAsync(h,d,n,cudaMemcpyDeviceToHost);});
  rate("memcpy h2d in 1 MB", [&]{for(long i=0;i<n;i+=1<<20) cudaMemcpyAsync(d+i,h+i,1<<20,cudaMemcpyHostToDevice);});
  for(long i=0;i<N;i+=8) *(uint64_t*)(h+i)=i*0x9E3779B97F4A7C15ull;
  for(int blocks:{8,16,32,64,132,264}) for(int threads:{256,1024}){ char s[80]; sprintf(s,"ld.nc %d blocks %d threads",blocks,threads); rate(s,[&]{copy_ld<<<blocks,threads>>>((uint4*)h,(uint4*)d,n/16,4);}); }
  rate("ld.nc registered THP 64x256",[&]{copy_ld<<<64,256>>>((uint4*)m,(uint4*)d,n/16,4);});
  C(cudaFuncSetAttribute(copy_bulk,cudaFuncAttributeMaxDynamicSharedMemorySize,160*1024));
  for(int bytes:{2176,4096,16384,32768}) for(int blocks:{16,32,64,132}){ char s[80]; sprintf(s,"bulk %d blocks of %d",blocks,bytes); rate(s,[&]{copy_bulk<<<blocks,32,4*bytes>>>(h,d,n/bytes,bytes,0);}); }
  // right bytes?
  C(cudaMemset(d,0,n)); copy_bulk<<<132,32,4*16384>>>(h,d,n/16384,16384,0); C(cudaDeviceSynchronize());
  std::vector<uint8_t> back(n); C(cudaMemcpy(back.data(),d,n,cudaMemcpyDeviceToHost)); printf("bulk bytes %s\n", memcmp(back.data(),h,n)?"WRONG":"right");
  // small copies: one expert of 3 MB and 12 MB by kernels, time of each in a row
  for(long sz:{2l<<20,8l<<20,32l<<20}){ for(int r=0;r<2;++r){ cudaEventRecord(e0); for(int k=0;k<20;++k) copy_ld<<<64,256>>>((uint4*)(h+k*sz),(uint4*)d,sz/16,4); cudaEventRecord(e1); cudaEventSynchronize(e1);} cudaEventElapsedTime(&ms,e0,e1); printf("ld 64x256 %ld MiB: %.1f us each, %.1f GB/s\n",sz>>20,ms*50,sz*20/ms*1e-6);
   for(int r=0;r<2;++r){ cudaEventRecord(e0); for(int k=0;k<20;++k) cudaMemcpyAsync(d,h+k*sz,sz,cudaMemcpyHostToDevice); cudaEventRecord(e1); cudaEventSynchronize(e1);} cudaEventElapsedTime(&ms,e0,e1); printf("memcpy %ld MiB: %.1f us each, %.1f GB/s\n",sz>>20,ms*50,sz*20/ms*1e-6);}
  a=now(); cudaFreeHost(h); printf("free %.2f s\n",now()-a);
}
